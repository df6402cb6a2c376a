"""What README.md and docs/findings.md say of our runs, written from the runs alone.

Each block stands between `<!-- its name -->` and `<!-- -->`. `python notebooks/refresh.py 05_what_we_found` writes them
anew, and a test compares them with the committed results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from clamkit.engine.store import Run
from clamkit.lab.results import load_runs
from clamkit.metrics import FEWEST, LEVEL
from clamkit.metrics.statistics import NOT_DECIDED
from helpers import claims
from helpers.claims import CIFAR100, CONTROL, FASHION, REGIMES, RIVALS_OF_NORMAL
from helpers.run_measures import by_strength
from helpers.verdicts import listed, number

PAGES = ("README.md", "docs/findings.md")
BLOCK = re.compile(r"(<!-- (\w+) -->\n\n).*?(\n\n<!-- -->)", re.S)
HEADLINE = tuple(f"{RIVALS_OF_NORMAL[method]} {verb} " for method in ("clam", CONTROL) for verb in claims.VERBS)
MEASURED = {"lifts": "worst tenth", "brings": "std", "costs": "average"}  # by the verb of the claim
FINDINGS, NOTEBOOKS = "docs/findings.md", "notebooks"


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
        "how_far": how_far(frames, found),
        "five": five_rows(found, images),
        "findings": claims.as_markdown(found[found["claim"].str.startswith(HEADLINE)]),
        "every_method": claims.as_markdown(found[~found["claim"].str.startswith(HEADLINE)]),
        "averaged": claims.as_markdown(claims.table(list(claims.of_average(runs_of)))),
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
        "Class biases, fitted on held-out images without training, do so": (
            f"{RIVALS_OF_NORMAL[CONTROL]} brings",
            "than Normal",
        ),
        "CLAM lifts the worst classes further than class biases do": ("CLAM lifts", "that of Normal with biases"),
    }
    sentences = []
    for claim, (start, end) in asked.items():
        rows = _asked(found, start, end).sort_values("verdict", key=lambda word: word == NOT_DECIDED, kind="stable")
        said = [
            f"{word} for {listed([_place(where) for where in group['where']])}"
            for word, group in rows.groupby("verdict", sort=False)
        ]
        sentences.append(f"{claim}: {'; '.join(said)}.")
    return " ".join(sentences)


def _change(rows: pd.DataFrame, start: str, against: str, what: str, verdict: bool = False) -> str:
    """Effect of the one row whose claim begins and ends so, or nothing where there is none."""
    rows = rows[rows["claim"].str.startswith(start) & rows["claim"].str.endswith(f" {against}")]
    if rows.empty:
        return ""
    (row,) = rows.itertuples()
    return f"{what} {_effect(row.effect, row.low, row.high, row.n)}" + (f", {row.verdict}" if verdict else "")


def how_far(frames: dict[str, pd.DataFrame], found: pd.DataFrame) -> str:
    """How much evidence each regime has: the weak points come first."""
    few, enough, none = [], [], []
    for where, (grid, _) in REGIMES.items():
        if where not in frames:
            none.append(f"{_place(where)} (grid `{grid}`)")
            continue
        seeds = _seeds(found, where)
        has = f"{_place(where)}, {_counted(int((frames[where]['method'] != CONTROL).sum()), 'run')}, "
        has += f"{_counted(seeds, 'seed')} of CLAM beside Normal"
        (few if seeds < FEWEST else enough).append(has)
    parts = {"Too few seeds for any verdict": few, "No runs yet": none, "Enough to decide something": enough}
    return " ".join(f"*{name}*: {'; '.join(rows)}." for name, rows in parts.items() if rows)


def _seeds(found: pd.DataFrame, where: str) -> int:
    rows = found[(found["where"] == where) & found["claim"].str.startswith("CLAM brings")] if len(found) else found
    return int(rows["n"].iloc[0]) if len(rows) else 0


def five_rows(found: pd.DataFrame, images: dict[str, pd.DataFrame]) -> str:
    """Five questions, what our runs answer, and where to read on."""
    rows = [
        (
            "Does CLAM bring the classes closer than Normal?",
            _answers(found, "CLAM brings", "than Normal", "std"),
            f"[findings]({FINDINGS}), [05]({NOTEBOOKS}/05_what_we_found.ipynb)",
        ),
        (
            "Does it lift the worst tenth of the classes, and at what cost?",
            _answers(found, "CLAM lifts", "that of Normal", "worst tenth", ("CLAM costs", "against Normal")),
            f"[20]({NOTEBOOKS}/20_fairness_tables.ipynb), [23]({NOTEBOOKS}/23_worst_classes.ipynb)",
        ),
        (
            "Is it better than class biases, which need no training?",
            _answers(found, "CLAM lifts", "that of Normal with biases", "worst tenth"),
            "[class biases](docs/diagnose.md#class-biases)",
        ),
        (
            "At which crops do the classes come closer?",
            _crops_line(images[FASHION]),
            f"[24]({NOTEBOOKS}/24_augmentation_curves.ipynb), [06]({NOTEBOOKS}/06_class_crops.ipynb)",
        ),
        (
            "Who pays?",
            _payers_line(images[CIFAR100]),
            f"[findings]({FINDINGS}#who-gains-and-who-pays)",
        ),
    ]
    lines = [("question", "what our runs say", "more"), ("---",) * 3, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _answers(found: pd.DataFrame, start: str, end: str, what: str, cost: tuple[str, str] | None = None) -> str:
    """A line for each regime: verdict, effect with its interval, seeds; with `cost` the average accuracy too."""
    if found.empty:
        return claims.NO_RUNS
    prices = dict(zip(*_asked(found, *cost)[["where", "effect"]].to_numpy().T, strict=True)) if cost else {}
    lines = []
    for row in _asked(found, start, end).itertuples():
        price = f", average {_signed(prices[row.where])}" if row.where in prices else ""
        effect = _effect(row.effect, row.low, row.high, row.n)
        lines.append(f"{_place(row.where)}: **{row.verdict}**, {what} {effect}{price}")
    return "<br>".join(lines) or claims.NO_RUNS


def _asked(found: pd.DataFrame, start: str, end: str) -> pd.DataFrame:
    return found[found["claim"].str.startswith(start) & found["claim"].str.endswith(f" {end}")]


def _place(where: str) -> str:
    return where.replace(": ", " on ")


def _crops_line(frame: pd.DataFrame) -> str:
    values = claims.paired(frame, "clam", "normal", "std")
    if values.empty:
        return claims.NO_RUNS
    found = by_strength(values)
    sure = found[found["p_holm"] <= LEVEL]["mean"]
    surely = [f"{_signed(effect)} at crop bound {bound:g}" for bound, effect in sure.items()]
    said = f"std {listed(surely)}" if surely else "at none for certain"
    rest = len(found) - len(sure)
    others = f"; not decided at {rest} of {len(found)} bounds" if rest else ""
    return f"small networks on Fashion-MNIST (part): {said}{others} ({int(found['n'].max())} seeds)"


def _payers_line(frame: pd.DataFrame) -> str:
    table = _tenths(frame)
    if table is None:
        return claims.NO_RUNS
    worst, best = (_points(table.loc[tenth]) for tenth in (claims.TENTHS[0], claims.TENTHS[-1]))
    return f"the good classes: on a part of CIFAR-100 with small networks the worst tenth {worst}, the best {best}"


def crops_table(frame: pd.DataFrame) -> str:
    """CLAM minus Normal at each crop bound: std, and how much more the range grows by the crop."""
    std = claims.paired(frame, "clam", "normal", "std")
    if std.empty:
        return claims.NO_RUNS
    growth = claims.growth(frame, "clam") - claims.growth(frame, "normal")
    columns = {"std": by_strength(std), "growth of the range": by_strength(growth)}
    lines = [["crop bound", *(f"{name}, points" for name in columns)], ["---"] * 3]
    for bound in columns["std"].index:
        cells = [_cell_at(table, bound) for table in columns.values()]
        lines.append([f"{bound:g}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell_at(table: pd.DataFrame, bound: float) -> str:
    if bound not in table.index:
        return ""
    row = table.loc[bound]
    return f"{_effect(row['mean'], row['ci_low'], row['ci_high'], int(row['n']))}, p {claims.chance(row['p_holm'])}"


def tenths_table(images: dict[str, pd.DataFrame]) -> str:
    """CLAM minus Normal for the worst and the best tenth of the classes, on each kind of images."""
    lines = [["images", "worst tenth, points", "best tenth, points"], ["---"] * 3]
    for where, frame in images.items():
        table = _tenths(frame)
        if table is not None:
            lines.append([where, *(_points(table.loc[tenth]) for tenth in (claims.TENTHS[0], claims.TENTHS[-1]))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def editions(found: pd.DataFrame) -> str:
    """What became of the first edition's claims when seeds became the unit."""
    both = claims.since_first_edition(found)
    before = both[both["then"] == "supported"]
    lost = int((before["now"] == "not decided").sum())
    return (
        f"The seed is the unit. Counted by seeds, {lost} of the first edition's {len(before)} supported claims on "
        "small networks are no longer decided; notebook 05 has them all, before and after."
    )


def settings(asked: pd.DataFrame, fashion: pd.DataFrame) -> str:
    """What τ, floor, projection and the source of the accuracies change, small networks on Fashion-MNIST (part)."""
    rows = asked[asked["where"] == FASHION].set_index(["claim", "what"])
    most = rows[rows.index.get_level_values(0).str.startswith("every τ from 0.1 to 10")]
    step = re.search(r"least sure here: ([\d.]+)", most.index[0][0])[1]
    no_floor = by_strength(claims.paired(fashion, "maxmin", "normal", "average"))["mean"].mean()
    second = "accuracies from a second augmented pass against those counted while training (both projections)"
    lines = {
        f"τ = {step} against τ = 0": f"std {_said(most)}",
        "τ = 0.1 against τ = 1": _both(rows, "τ = 0.1 against τ = 1 (Euclidean projection)"),
        "KL against the Euclidean projection": _both(rows, "KL projection against the Euclidean projection"),
        "the released clip against KL": _both(rows, "the released clip against the KL projection"),
        "no floor (`maxmin`) against Normal": f"average {_signed(no_floor)}",
        'a second pass (`accuracy_from="pass"`) against counting while training': _both(rows, second),
    }
    return "\n".join(f"- {name}: {said}." for name, said in lines.items())


def _both(rows: pd.DataFrame, claim: str) -> str:
    return "; ".join(f"{what} {_said(rows.loc[[(claim, what)]])}" for what in ("std", "average"))


def _said(rows: pd.DataFrame) -> str:
    (row,) = rows.itertuples()
    verdict = claims.OPEN_WORDS.get(row.verdict, row.verdict)
    return f"{_effect(row.effect, row.low, row.high, row.n)}, {verdict}" if row.n else row.verdict


def _tenths(frame: pd.DataFrame) -> pd.DataFrame | None:
    """CLAM against Normal, a row for each tenth of the classes."""
    if not {"clam", "normal"} <= set(frame["method"]):
        return None
    return claims.against_normal({"": frame}, list(claims.TENTHS), ["clam"])[""]["clam"]


def _points(row: pd.Series) -> str:
    return _effect(100 * row["mean_difference"], 100 * row["ci_low"], 100 * row["ci_high"], int(row["n"]))


def _effect(effect: float, low: float, high: float, seeds: int) -> str:
    interval = f" [{_signed(low)}, {_signed(high)}]" if seeds > 1 else ""
    return f"{_signed(effect)}{interval} ({_counted(seeds, 'seed')})"


def _signed(value: float) -> str:
    return number(value, 1, sign=True)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"
