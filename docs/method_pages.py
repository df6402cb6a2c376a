"""A page for each method, made from its entry in clamkit, its cell in the table of games and the committed results.

What a person must write (formula, pitfalls, sources) is in docs/methods.yml.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import yaml

from clamkit.apps.words import points
from clamkit.methods.specs import METHODS, PAPER_CLASSES, Method
from clamkit.metrics import by_seed, seed_interval

REGIMES = {  # the three in which we ask, and the grids that tell: (images, grid)
    "Small networks": (
        ("Fashion-MNIST (part), 50 of a class held out", "small_embedded"),
        ("Fashion-MNIST (part), 50 of a class held out, equal effort", "small_chosen"),
        ("Fashion-MNIST (part), 50 of a class held out", "small_average"),
        ("Fashion-MNIST (part)", "mini_crop"),
        ("Fashion-MNIST (part)", "mini_projection"),
        ("CIFAR-10 (part)", "mini_cifar10"),
        ("CIFAR-100 (part)", "mini_cifar100"),
        ("Mini-ImageNet (part)", "mini_mini_imagenet"),
        ("Fashion-MNIST (part) with a long tail", "mini_tail"),
    ),
    "The paper's accuracy": (
        ("Fashion-MNIST", "fast_fashion_mnist"),
        ("CIFAR-10", "fast_cifar10"),
        ("CIFAR-100", "fast_cifar100"),
    ),
    "100 % training accuracy": (
        ("Fashion-MNIST (part)", "long_embedded"),
        ("Fashion-MNIST (part), 60 epochs of a small network", "mini_long"),
    ),
}
NORMAL_OF = {
    "mini_projection": "mini_crop",
    "small_average": "small_embedded",
}  # a grid without Normal is compared with that of another
SHOWN = {"average": "average %", "std": "std", "worst": "worst tenth %"}
COSTS = {
    "never": "Nothing beside the loss itself: the weights do not move.",
    "epoch": "An update of n numbers after each epoch, and counting what is right in each batch: a CLAM epoch takes "
    "1.02 times a Normal one, which is within the noise of the measurement ([speed](../speed.md)).",
    "batch": "An update of n numbers with every batch; its epochs take as long as Normal's within noise "
    "([speed](../speed.md)).",
}
DATASETS = {
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mini_imagenet": "Mini-ImageNet",
    "imagenet": "ImageNet",
}


def pages(root: Path) -> dict[str, str]:
    """The page of each method and the one that lists them, by their place."""
    notes = yaml.safe_load((root / "docs" / "methods.yml").read_text(encoding="utf-8"))
    common = notes.pop("common")
    for own in notes.values():
        own |= {part: common[part] | own.get(part, {}) for part in common}
    if set(notes) != set(METHODS):
        raise SystemExit(f"docs/methods.yml and METHODS differ: {sorted(set(notes) ^ set(METHODS))}")
    games = table_of_games((root / "docs" / "table_of_games.md").read_text(encoding="utf-8"))
    grids = {grid: read_grid(root, grid) for rows in REGIMES.values() for _, grid in rows}
    made = {f"docs/methods/{name}.md": page(name, METHODS[name], notes[name], games[name], grids) for name in METHODS}
    listed = overview((root / "docs" / "methods.md").read_text(encoding="utf-8"))
    return {"docs/methods.md": listed} | made


def overview(text: str) -> str:
    """docs/methods.md with a link from each name in its table to the page."""
    rows = re.compile(r"^\| `.*?\|", re.M)
    linked = rows.sub(lambda row: re.sub(r"`(\w+)`", r"[`\1`](methods/\1.md)", row[0]), text)
    if missing := [name for name in METHODS if f"(methods/{name}.md)" not in linked]:
        raise SystemExit(f"docs/methods.md lacks {', '.join(missing)}")
    return linked


def page(name: str, method: Method, notes: dict, game: dict[str, str], grids: dict[str, pd.DataFrame]) -> str:
    parts = [
        f"# {method.label}: `{name}`",
        method.about,
        f"$$\n{notes['formula']}\n$$",
        f"```\nclamkit train --method {name} --crop-lower-bound 0.3\n```",
        "## In the table of games",
        "| " + " | ".join(game) + " |\n" + "|---" * len(game) + "|\n| " + " | ".join(game.values()) + " |",
        "v are the accuracies of the n classes, ℓ their losses, w the weights, which sum to 1. "
        "[The whole table](../table_of_games.md).",
        "## Settings",
        "Values are the paper's where it has them, else the defaults.",
        settings_table(method, notes),
        "## Cost",
        COSTS[method.every],
        "## Pitfalls",
        "\n".join(f"- {pitfall}" for pitfall in notes["pitfalls"]),
        "## Our results",
        results(name, grids),
        "## Source",
        "\n".join(f"- {source}" for source in notes["sources"]),
    ]
    return "\n\n".join(parts) + "\n"


def table_of_games(text: str) -> dict[str, dict[str, str]]:
    """The cells of each method in docs/table_of_games.md, by the column."""
    head, *rows = re.findall(r"^\| (?:method|`\w+`) \|.*\|$", text, re.M)
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {first.strip("`"): dict(zip(columns[1:], rest, strict=True)) for first, *rest in cells}


def settings_table(method: Method, notes: dict) -> str:
    """Each setting, what it is, and its value: the paper's on each dataset, or the default where it has none."""
    if not method.settings:
        return "None."
    lines = [["setting", "what it is", "value"], ["---"] * 3]
    for name in method.settings:
        values, released = (
            {dataset: method.values(dataset, PAPER_CLASSES[dataset], protocol).get(name) for dataset in DATASETS}
            for protocol in ("paper", "released")
        )
        said = by_dataset(values) or notes["defaults"][name]
        if others := {dataset: value for dataset, value in released.items() if value != values[dataset]}:
            same = len(others) == len(values) and len(set(others.values())) == 1
            each = [f"{_value(value)} on {DATASETS[dataset]}" for dataset, value in others.items()]
            listed = by_dataset(others) if same else ", ".join(each)
            said += f"; in the released code {listed}"
        lines.append([f"`{name}`", notes["settings"][name], said])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def by_dataset(values: dict[str, object]) -> str:
    """The most common value, then those of the datasets that have another; nothing where there is none."""
    known = [value for value in values.values() if value is not None]
    if not known:
        return ""
    usual = max(known, key=known.count)
    others = [f"{_value(value)} on {DATASETS[name]}" for name, value in values.items() if value not in (None, usual)]
    return ", ".join([_value(usual), *others])


def _value(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


# -------------------------------------------------------------------------------------------------------- results


def read_grid(root: Path, grid: str) -> pd.DataFrame:
    """The committed rows of a grid; another setting of a method is a method of its own."""
    file = root / "data" / "results" / f"{grid}.csv"
    if not file.is_file():
        return pd.DataFrame(columns=["method", "setting", "strength", "seed", *SHOWN])
    frame = pd.read_csv(file)
    for column, usual in (("accuracy_from", "epoch"), ("acts_on", "loss")):
        frame[column] = frame[column].astype(object).fillna(usual) if column in frame else usual
    for column in (own := {"gamma": "γ", "alpha": "α", "eta": "η"}):
        frame[column] = frame[column] if column in frame else float("nan")
    named = [
        ", ".join(
            text
            for text, differs in (
                (f"τ = {row.tau:g}", row.tau != 1),
                *((f"{sign} = {getattr(row, name):g}", pd.notna(getattr(row, name))) for name, sign in own.items()),
                (f"accuracies from {row.accuracy_from}", row.accuracy_from != "epoch"),
                ("weights on the sampling", row.acts_on != "loss"),
            )
            if differs
        )
        for row in frame.itertuples()
    ]
    return frame.assign(setting=named)[["method", "setting", "strength", "seed", *SHOWN]]


def results(name: str, grids: dict[str, pd.DataFrame]) -> str:
    """A table for each regime: means over crop bounds and seeds, ± the spread over seeds, and against Normal."""
    parts = [
        "Means over the crop bounds of a grid; ± is the standard deviation over seeds. Below it the difference to "
        "Normal in the same settings, in points, with its 95 % interval over seeds; one or two seeds decide nothing. "
        "[How it is measured](../findings.md), and what [equal effort](../findings.md#equal-effort) is."
    ]
    for regime, rows in REGIMES.items():
        lines = [line for images, grid in rows for line in result_lines(name, images, grid, grids)]
        head = ["images (grid)", "crop bounds", "seeds", *SHOWN.values()]
        table = "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])
        parts.append(f"### {regime}\n\n{table if lines else 'No runs of this method yet.'}")
    return "\n\n".join(parts)


def result_lines(name: str, images: str, grid: str, grids: dict[str, pd.DataFrame]) -> list[list[str]]:
    """Images, crop bounds, seeds, then mean ± spread over seeds and difference to Normal [interval] of each metric."""
    frame, others = grids[grid], grids[NORMAL_OF.get(grid, grid)]
    key = ["strength", "seed"]
    normal = others[(others["method"] == "normal") & (others["setting"] == "")].set_index(key)[[*SHOWN]]
    lines = []
    for setting, rows in frame[frame["method"] == name].groupby("setting"):
        had = rows.groupby("strength")["seed"].nunique()
        whole = rows["strength"].map(had) == rows["seed"].nunique()  # as `by_seed`: the bounds that all seeds have
        rows = rows[whole] if whole.any() else rows
        own = rows.set_index(key)[[*SHOWN]]
        differences = (own - normal).dropna() if name != "normal" else own.iloc[:0]
        bounds = ", ".join(f"{bound:g}" for bound in sorted(rows["strength"].unique()))
        label = f"{images} (`{grid}`)" + f", {setting}" * bool(setting)
        cells = [mean_and_spread(own[metric]) + difference(differences[metric]) for metric in SHOWN]
        lines.append([label, bounds, str(rows["seed"].nunique()), *cells])
    return lines


def mean_and_spread(values: pd.Series) -> str:
    seeds = 100 * by_seed(values).to_numpy()
    return f"{seeds.mean():.1f}" + (f" ± {seeds.std(ddof=1):.1f}" if len(seeds) > 1 else "")


def difference(values: pd.Series) -> str:
    """In points, the mean over seeds with its interval, on a line of its own; what rounds to zero has no sign."""
    if values.empty:
        return ""
    seeds = by_seed(values).to_numpy()
    interval = f" [{', '.join(map(points, seed_interval(seeds)))}]" if len(seeds) > 1 else ""
    return "<br>" + f"{points(seeds.mean())}{interval}".replace(" ", "\N{NO-BREAK SPACE}")
