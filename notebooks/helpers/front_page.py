"""What README.md, docs/start.md and docs/findings.md say of our runs, written from the runs alone.

Each block stands between `<!-- its name -->` and `<!-- -->`. `python notebooks/refresh.py 05_what_we_found` writes them
anew, and a test compares them with the committed results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pandas as pd

from clamkit.engine.store import Run
from clamkit.lab.results import load_runs
from clamkit.lab.selection import select
from clamkit.methods.specs import METHODS
from clamkit.metrics import FEWEST, LEVEL, holm
from clamkit.metrics.statistics import NO_DIFFERENCE, NOT_DECIDED, OPPOSITE, SUPPORTED
from helpers import claims
from helpers.claims import CONTROL, FASHION, REGIMES, RIVALS_OF_NORMAL, TENTHS
from helpers.run_measures import by_strength
from helpers.verdicts import listed, number

PAGES = ("README.md", "docs/start.md", "docs/findings.md")
BLOCK = re.compile(r"(<!-- (\w+) -->\n\n).*?(\n\n<!-- -->)", re.S)
BIASED, GENTLE = RIVALS_OF_NORMAL[CONTROL], RIVALS_OF_NORMAL["clam_kl, τ = 0.1"]
HEADLINE = (
    *(f"{RIVALS_OF_NORMAL[method]} {verb} " for method in ("clam", CONTROL) for verb in claims.VERBS),
    f"{claims.TAIL_BIASES} ",
)
MEASURED = {"lifts": "worst tenth", "brings": "std", "costs": "average"}  # by the verb of the claim
SMALL = next(iter(REGIMES))
FINDINGS, NOTEBOOKS = "docs/findings.md", "notebooks"
ANSWERS = {SUPPORTED: "Yes", OPPOSITE: "The opposite", NO_DIFFERENCE: "No difference", NOT_DECIDED: "Not decided"}
NETWORKS = {  # what a regime's short name stands for, where that is not plain
    "the paper's accuracy": "networks about as accurate as the paper's",
    "100 % training accuracy": "networks with 100 % training accuracy",
}
COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def written(text: str, blocks: dict[str, str]) -> str:
    """A page with each of its blocks as it should be."""
    if unknown := [name for _, name, _ in BLOCK.findall(text) if name not in blocks]:
        raise ValueError(f"no block is called {unknown[0]!r}: there are {', '.join(blocks)}")
    return BLOCK.sub(lambda found: f"{found[1]}{blocks[found[2]]}{found[3]}", text)


def write(root: Path) -> None:
    """Write the blocks of all pages anew."""
    blocks = blocks_of()
    for page in (root / name for name in PAGES):
        page.write_text(written(page.read_text(encoding="utf-8"), blocks), encoding="utf-8")


def blocks_of(runs_of: Callable[[str], Sequence[Run]] = load_runs) -> dict[str, str]:
    """Every block by its name."""
    runs_of = cache(runs_of)
    frames = claims.by_regime(claims.runs_by_regime(runs_of))
    found = claims.table(list(claims.of_regimes(frames)))
    images = claims.by_images(runs_of)
    asked = claims.table([*claims.of_the_paper(runs_of, images), *claims.left_open(runs_of, images)])
    return {
        "in_short": in_short(found, crops_of_small_networks(frames, images[FASHION], asked)),
        "how_far": how_far(frames, found),
        "five": five_rows(found, images),
        "findings": claims.as_markdown(found[found["claim"].str.startswith(HEADLINE)]),
        "every_method": claims.as_markdown(found[~found["claim"].str.startswith(HEADLINE)]),
        "averaged": claims.as_markdown(claims.table(list(claims.of_average(runs_of)))),
        "effort": effort(claims.equal_effort(runs_of), runs_of("small_effort")),
        "crops": crops_table(images[FASHION]),
        "tenths": tenths_table(images),
        "editions": editions(asked[asked["kind"] == "paper"]),
        "settings": settings(asked, images[FASHION]),
    }


def summary(frames: dict[str, pd.DataFrame], found: pd.DataFrame) -> str:
    """The findings in a paragraph for each regime, and one to quote."""
    parts = [f"**How far this goes.** {how_far(frames, found)}"]
    for where, frame in frames.items():
        normal = 100 * frame[frame["method"] == "normal"][["average", "worst"]].mean()
        said = (
            f"Normal has {number(normal['average'], 1)} % on average, {number(normal['worst'], 1)} % in the worst tenth"
        )
        rows = found[found["where"] == where]
        for name in (RIVALS_OF_NORMAL[method] for method in ("clam", CONTROL)):
            changes = [_change(rows, f"{name} {verb} ", "Normal", what) for verb, what in MEASURED.items()]
            said += f". {name}: {', '.join(changes)}" if all(changes) else ""
        if beside := _change(rows, "CLAM lifts ", "Normal with biases", "worst tenth", verdict=True):
            said += f". CLAM against class biases: {beside}"
        parts.append(f"**{where[0].upper()}{where[1:]}.** {said}.")
    return "\n\n".join([*parts, f"**To quote:** *{quote(found)}*"])


def quote(found: pd.DataFrame) -> str:
    """What is decided on CLAM, on class biases and between them, regime by regime, as one paragraph."""
    if found.empty:
        return claims.NO_RUNS
    asked = {
        "CLAM brings the classes closer together than normal training": ("CLAM brings", "than Normal"),
        "Class biases, fitted on held-out images without training, do so": (f"{BIASED} brings", "than Normal"),
        "CLAM lifts the worst classes further than class biases do": ("CLAM lifts", "that of Normal with biases"),
    }
    sentences = []
    for claim, (start, end) in asked.items():
        rows = _asked(found, start, end).sort_values("verdict", key=lambda word: word == NOT_DECIDED, kind="stable")
        said = [f"{word} for {_places(group['where'])}" for word, group in rows.groupby("verdict", sort=False)]
        sentences.append(f"{claim}: {'; '.join(said)}.")
    return " ".join(sentences)


def _change(rows: pd.DataFrame, start: str, against: str, what: str, verdict: bool = False) -> str:
    """Effect of the one row whose claim begins and ends so, or nothing where there is none."""
    rows = rows[rows["claim"].str.startswith(start) & rows["claim"].str.endswith(f" {against}")]
    if rows.empty:
        return ""
    (row,) = rows.itertuples()
    return f"{what} {_effect(row)}" + (f", {row.verdict}" if verdict else "")


def in_short(found: pd.DataFrame, crops: str = "") -> str:
    """Does it help, and is it worth its training? An answer in each line. crops: said of the small networks."""
    if found.empty:
        return f"**Does it help?** We do not know: {claims.NO_RUNS}."
    rows, prices = _asked(found, "CLAM brings", "than Normal"), _prices(found)
    said = ["**Does it help?** Differences to plain training in points, with 95 % intervals over seeds:"]
    for row in rows[rows["verdict"] != NOT_DECIDED].itertuples():
        price = f", average accuracy {prices[row.where]}" if row.where in prices else ""
        said.append(
            f"- **{ANSWERS[row.verdict]}** for {_place(row.where)} ({_counted(row.n, 'seed')}): the spread of class "
            f"accuracies (std) {_span(row)}{price}." + (f" {crops}" if crops and row.where == SMALL else "")
        )
    left = rows[rows["verdict"] == NOT_DECIDED]
    notes = [f" ({_counted(count, 'seed')})" for count in left["n"]]
    said += [f"- **{ANSWERS[NOT_DECIDED]}** for {_places(left['where'], notes)}."] if len(left) else []
    if len(rivals := _asked(found, "CLAM lifts", "that of Normal with biases")):
        biases = "class biases (fitted for average − std), which correct a finished model without training"
        said.append(f"- Does it help the worst classes more than {biases}? {_verdicts(rivals, '**', _places)}.")
        for name, label, also in (
            (BIASED, "Class biases", "bring the classes closer than plain training too"),
            (GENTLE, "A gentler CLAM (KL projection, τ = 0.1)", "does so too"),
        ):
            own, prices = _asked(found, f"{name} brings", "than Normal"), _prices(found, name)
            found_for = [
                f"{_place(row.where)} std {_span(row)}, average {prices[row.where]}"
                for row in own[own["verdict"] == SUPPORTED].itertuples()
            ]
            said += [f"- {label} {also}: {'; '.join(found_for)}."] if found_for else []
    return "\n".join(said)


def crops_of_small_networks(frames: dict[str, pd.DataFrame], crop: pd.DataFrame, asked: pd.DataFrame) -> str:
    """Which crops the small networks were asked at, and what the same networks do over all crops of the paper."""
    small = frames.get(SMALL, crop.iloc[:0])
    rows = asked[(asked["where"] == FASHION) & asked["n"].gt(0)].set_index(["claim", "what"])
    keys = [(claims.CLOSER, "std"), (claims.CHEAP, "average")]
    if small.empty or rows.index.isin(keys).sum() != len(keys):
        return ""
    std, average = (rows.loc[key] for key in keys)
    bounds = listed([f"{bound:g}" for bound in sorted(small["strength"].unique())])
    seeds = _counted(int(std["n"]), "seed")
    return (
        f"This is at the crop bounds {bounds} (the smallest share of an image that a crop keeps). Over "
        f"{COUNTS[crop['strength'].nunique()]} bounds, as in the paper's tables, {seeds}: std "
        f"{_span(std)} ({std['verdict']} after correction for all questions of that table), average {_span(average)}."
    )


def how_far(frames: dict[str, pd.DataFrame], found: pd.DataFrame) -> str:
    """How much evidence each regime has, in a sentence and a list: the weak points come first."""
    few, enough, none, most = [], [], [], 0
    for where, (grid, _) in REGIMES.items():
        if where not in frames:
            none.append(f"{_place(where)} (grid `{grid}`)")
            continue
        seeds = _seeds(found, where)
        most = max(most, seeds)
        trained = frames[where][~frames[where]["method"].str.contains("+", regex=False)]
        bounds = [f"{bound:g}" for bound in sorted(trained["strength"].unique())]
        has = f"{_place(where)} (grid `{grid}`: {_counted(len(trained), 'run')} at crop bound{'s' * (len(bounds) > 1)} "
        has += f"{listed(bounds)}, "
        has += f"{_counted(seeds, 'seed')} of CLAM beside Normal"
        if printed := claims.printed_average(where):
            normal = frames[where][frames[where]["method"] == "normal"]["average"].mean()
            has += f"; Normal averages {number(100 * normal, 1)} %, the paper's {number(printed, 1)} %"
        has += ")"
        (few if seeds < FEWEST else enough).append(has)
    pairs, takes = COUNTS[len(REGIMES)], f"a verdict takes {COUNTS[FEWEST]} seeds"
    have = f"{COUNTS[len(enough)].capitalize()} of the {pairs} {'have' if len(enough) > 1 else 'has'} that many"
    parts = {"No runs yet": none, "Too few seeds for any verdict": few, "Enough seeds to decide something": enough}
    return "\n".join(
        [
            f"We ask about {pairs} pairs of network and images, and {takes}. {have}; the most that any has is {most}.",
            *(f"- *{name}*: {'; '.join(rows)}." for name, rows in parts.items() if rows),
        ]
    )


def _seeds(found: pd.DataFrame, where: str) -> int:
    rows = found[(found["where"] == where) & found["claim"].str.startswith("CLAM brings")] if len(found) else found
    return int(rows["n"].iloc[0]) if len(rows) else 0


def five_rows(found: pd.DataFrame, images: dict[str, pd.DataFrame]) -> str:
    """Five questions: the answer in words, the numbers behind it, and where to read on."""
    rows = [
        (
            "Does CLAM bring the classes closer than Normal?",
            *_answers(found, "CLAM brings", "than Normal", "std"),
            f"[findings]({FINDINGS}), [05]({NOTEBOOKS}/05_what_we_found.ipynb)",
        ),
        (
            "Does it lift the worst tenth of the classes, and at what cost?",
            *_answers(found, "CLAM lifts", "that of Normal", "worst tenth", priced=True),
            f"[20]({NOTEBOOKS}/20_fairness_tables.ipynb), [23]({NOTEBOOKS}/23_worst_classes.ipynb)",
        ),
        (
            "Does it lift them more than class biases, which need no training?",
            *_answers(found, "CLAM lifts", "that of Normal with biases", "worst tenth"),
            "[class biases](docs/diagnose.md#class-biases)",
        ),
        (
            "At which crops do the classes come closer?",
            *_crops_line(images[FASHION]),
            f"[24]({NOTEBOOKS}/24_augmentation_curves.ipynb), [06]({NOTEBOOKS}/06_class_crops.ipynb)",
        ),
        (
            "Who pays?",
            *_payers_line(images),
            f"[findings]({FINDINGS}#who-gains-and-who-pays)",
        ),
    ]
    lines = [("question", "our answer", "our numbers", "more"), ("---",) * 4, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _answers(found: pd.DataFrame, start: str, end: str, what: str, priced: bool = False) -> tuple[str, str]:
    """The verdicts in words; a line for each regime: effect, interval, seeds, corrected p and, if `priced`, cost."""
    rows = _asked(found, start, end) if len(found) else found
    if rows.empty:
        return claims.NO_RUNS, ""
    prices = _prices(found) if priced else {}
    lines = []
    for row in rows.itertuples():
        sure = f", p {claims.chance(row.p)}" if row.n >= FEWEST else ""
        price = f"; average {prices[row.where]}" if row.where in prices else ""
        lines.append(f"{_short(row.where)}: {what} {_effect(row)}{sure}{price}")
    return _verdicts(rows, "**"), "<br>".join(lines)


def _verdicts(rows: pd.DataFrame, mark: str = "", named: Callable[[Sequence[str]], str] | None = None) -> str:
    """Rows of one claim: what is decided for which regimes (by their short names), the undecided ones last."""
    named = named or (lambda places: listed([_short(where) for where in places]))
    ordered = rows.sort_values("verdict", key=lambda word: word == NOT_DECIDED, kind="stable")
    groups = [(ANSWERS[word], list(group["where"])) for word, group in ordered.groupby("verdict", sort=False)]
    if len(rows) > 1 and len(groups) == 1:
        return f"{mark}{groups[0][0]}{mark} {'anywhere' if ordered['verdict'].iloc[0] == NOT_DECIDED else 'everywhere'}"
    said = "; ".join(f"{mark}{word.lower()}{mark} for {named(at)}" for word, at in groups)
    return said.replace(said.strip("*")[0], said.strip("*")[0].upper(), 1)


def _prices(found: pd.DataFrame, method: str = "CLAM") -> dict[str, str]:
    """What a method changes in average accuracy against Normal, by regime."""
    return {row.where: _span(row) for row in _asked(found, f"{method} costs", "against Normal").itertuples()}


def _asked(found: pd.DataFrame, start: str, end: str) -> pd.DataFrame:
    return found[found["claim"].str.startswith(start) & found["claim"].str.endswith(f" {end}")]


def _place(where: str) -> str:
    """A regime for those who have not met its short name."""
    kind, images = where.split(": ")
    part = images.removesuffix(" (part)")
    return f"{NETWORKS.get(kind, kind)} on {'a part of ' * (part != images)}{part}"


def _places(regimes: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Several of them, those of one kind of network together, each with its note."""
    kinds: dict[str, list[str]] = {}
    for where, note in zip_longest(regimes, notes, fillvalue=""):
        kind, _, images = _place(where).partition(" on ")
        kinds.setdefault(kind, []).append(f"{images}{note}")
    *first, last = [f"{kind} on {listed(images)}" for kind, images in kinds.items()]
    return f"{', '.join(first)}, and {last}" if first else last


def _short(where: str) -> str:
    """Its short name, with the images where several regimes share it."""
    kind, images = where.split(": ")
    return f"{kind} ({images})" if sum(other.startswith(kind) for other in REGIMES) > 1 else kind


def _crops_line(frame: pd.DataFrame) -> tuple[str, str]:
    values = claims.paired(frame, "clam", "normal", "std")
    if values.empty:
        return claims.NO_RUNS, ""
    found = by_strength(values)
    sure = found[found["p_holm"] <= LEVEL]["mean"]
    bounds = listed([f"{bound:g}" for bound in sure.index]) if len(sure) else "none for certain"
    others = f"; not decided at the other {len(found) - len(sure)}" if 0 < len(sure) < len(found) else ""
    ends = [f"{_span(row)} at {row.Index:g}" for row in _named(found.iloc[[0, -1]]).itertuples()]
    numbers = f"small networks: std {' to '.join(ends)} ({_counted(int(found['n'].max()), 'seed')})"
    return f"**At {'crop bound ' * (len(sure) > 0)}{bounds}**{others}", numbers


def _payers_line(images: dict[str, pd.DataFrame]) -> tuple[str, str]:
    tables = _ends(images)
    if not tables:
        return claims.NO_RUNS, ""
    paid = [where for where, (worst, best) in tables.items() if best.effect < 0 and best.p_holm <= LEVEL]
    idle = [where for where in paid if not (tables[where][0].effect > 0 and tables[where][0].p_holm <= LEVEL)]
    rest = [where for where in tables if where not in paid]
    word = f"**The good classes** on {listed(paid)}" if paid else f"**{ANSWERS[NOT_DECIDED]}**"
    word += f"; not decided on {listed(rest)}" if paid and rest else ""
    word += f"; the worst do not surely gain on {listed(idle)}" if idle else ""
    ends = {
        where: ", ".join(f"{end} tenth {_effect(row)}" for end, row in zip(("worst", "best"), rows, strict=True))
        for where, rows in tables.items()
    }
    lines = [f"{where}: {said}" for where, said in ends.items()]
    return word, "<br>".join(["small networks on a part of the images:", *lines])


def effort(frame: pd.DataFrame, tried: Sequence[Run]) -> str:
    """Every method with its chosen setting: differences to Normal, and the verdict on its std against class biases."""
    if frame.empty:
        return claims.NO_RUNS
    chosen = select(tried).table.query("chosen").set_index("method")["setting"]
    against = {method: _named(own) for method, own in _against_normal(frame, ["average", "std", "worst"]).items()}
    asked = claims.table(list(claims.of_effort(frame)))
    verdicts = {row.claim.partition(" brings ")[0]: row for row in asked[asked["what"] == "std"].itertuples()}
    lines = [["method", "chosen of four", "average", "std", "worst tenth", "closer than class biases?"], ["---"] * 6]
    for method, table in against.items():
        name, points = METHODS[method].label, [_effect(row) for row in table.itertuples()]
        row = verdicts.get(name)
        said = f"{row.verdict}, p {claims.chance(row.p)}" if row else ""
        lines.append([name, chosen.get(method, ""), *points, said])
    waiting = chosen.drop(list(against), errors="ignore")
    lines += [[METHODS[method].label, setting, claims.NO_RUNS, "", "", ""] for method, setting in waiting.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def crops_table(frame: pd.DataFrame) -> str:
    """CLAM minus Normal at each crop bound: std, and how much more the range grows by the crop."""
    std = claims.paired(frame, "clam", "normal", "std")
    if std.empty:
        return claims.NO_RUNS
    growth = claims.growth(frame, "clam") - claims.growth(frame, "normal")
    columns = {"std": _named(by_strength(std)), "growth of the range": _named(by_strength(growth))}
    lines = [["crop bound", *(f"{name}, points" for name in columns)], ["---"] * 3]
    for bound in columns["std"].index:
        cells = [_cell_at(table, bound) for table in columns.values()]
        lines.append([f"{bound:g}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell_at(table: pd.DataFrame, bound: float) -> str:
    return _with_p(table.loc[bound]) if bound in table.index else ""


def _with_p(row) -> str:
    return f"{_effect(row)}" + (f", p {claims.chance(row.p_holm)}" if row.n >= FEWEST else "")


def tenths_table(images: dict[str, pd.DataFrame]) -> str:
    """CLAM minus Normal for the worst and the best tenth of the classes, on each kind of images."""
    lines = [["images", "worst tenth, points", "best tenth, points"], ["---"] * 3]
    lines += [[where, *(_with_p(row) for row in rows)] for where, rows in _ends(images).items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def editions(found: pd.DataFrame) -> str:
    """What became of the first edition's claims when seeds became the unit."""
    both = claims.since_first_edition(found)
    before = both[both["then"] == "supported"]
    lost = int((before["now"] == "not decided").sum())
    return (
        f"A verdict counts seeds, not runs. Counted so, {lost} of the {len(before)} claims on small networks that "
        "version 0.1.0 called supported are no longer decided; notebook 05 has them all, before and after."
    )


def settings(asked: pd.DataFrame, fashion: pd.DataFrame) -> str:
    """What τ, floor, projection and the source of the accuracies change, small networks on Fashion-MNIST (part)."""
    rows = asked[asked["where"] == FASHION].set_index(["claim", "what"])
    most = rows[rows.index.get_level_values(0).str.startswith("every τ from 0.1 to 10")]
    step = re.search(r"least sure here: ([\d.]+)", most.index[0][0])[1]
    no_floor = _named(_against_normal(fashion, ["std", "average"], ["maxmin"])["maxmin"])
    second = "accuracies from a second augmented pass against those counted while training (both projections)"
    lines = {
        f"τ = {step} against τ = 0": f"std {_said(most)}",
        "τ = 0.1 against τ = 1": _both(rows, "τ = 0.1 against τ = 1 (Euclidean projection)"),
        "KL against the Euclidean projection": _both(rows, "KL projection against the Euclidean projection"),
        "the released clip against KL": _both(rows, "the released clip against the KL projection"),
        "no floor (`maxmin`) against Normal": "; ".join(f"{row.Index} {_effect(row)}" for row in no_floor.itertuples()),
        'a second pass (`accuracy_from="pass"`) against counting while training': _both(rows, second),
    }
    return "\n".join(f"- {name}: {said}." for name, said in lines.items())


def _both(rows: pd.DataFrame, claim: str) -> str:
    return "; ".join(f"{what} {_said(rows.loc[[(claim, what)]])}" for what in ("std", "average"))


def _said(rows: pd.DataFrame) -> str:
    (row,) = rows.itertuples()
    verdict = claims.OPEN_WORDS.get(row.verdict, row.verdict)
    return f"{_effect(row)}, {verdict}" if row.n else row.verdict


def _against_normal(frame: pd.DataFrame, metrics: Sequence, methods: Sequence[str] | None = None) -> dict:
    return claims.against_normal({"": frame}, metrics, methods)[""]


def _ends(images: dict[str, pd.DataFrame]) -> dict[str, list]:
    """CLAM against Normal for the worst and the best tenth of the classes; p is corrected for all numbers here."""
    known = {where: frame for where, frame in images.items() if {"clam", "normal"} <= set(frame["method"])}
    ends = [TENTHS[0], TENTHS[-1]]
    tables = {where: _named(_against_normal(frame, ends, ["clam"])["clam"]) for where, frame in known.items()}
    if not tables:
        return {}
    found = pd.concat(tables)
    found["p_holm"] = holm(found["p"].to_numpy())
    return {where: [found.loc[(where, tenth)] for tenth in ends] for where in tables}


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """A table of `compare_groups` or `by_strength`, its effects called as those of `claims.table`, in points."""
    names = {"ci_low": "low", "ci_high": "high"}
    if "mean" in table:
        return table.rename(columns=names | {"mean": "effect"})
    points = 100 * table[["mean_difference", "ci_low", "ci_high"]]
    return table.assign(**points).rename(columns=names | {"mean_difference": "effect"})


def _effect(row) -> str:
    return f"{_span(row)} ({_counted(int(row.n), 'seed')})"


def _span(row) -> str:
    interval = f" [{claims.signed(row.low)}, {claims.signed(row.high)}]" if row.n > 1 else ""
    return f"{claims.signed(row.effect)}{interval}"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"
