"""Diagnose before you fix: a page on the predictions of any model, and on what augmentation did to its classes.

The input is a file with a row for each image and the columns label and prediction, names or numbers, optionally id.
"""

from __future__ import annotations

import base64
import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from clamkit import paths
from clamkit.errors import ClamkitError
from clamkit.metrics import class_changes, fairness, sampling_std, tail_size, wilson
from clamkit.plots import PERCENT, styled

CONFIDENCE = 0.95
MOST = 15  # rows in a list of classes or of confused pairs
FEW = 30  # so many classes fit into one figure by name
BEFORE, AFTER, HELPED = "#0072b2", "#d55e00", "#009e73"
TESTS = {
    True: "McNemar's exact test on the images that one model got right and the other wrong",
    False: "Fisher's exact test of two independent samples",
}


@dataclass(frozen=True)
class Diagnosis:
    """classes: one row a class; fairness: one row a metric; pairs: what was taken for what. Fractions, not percent.

    With augmentation the columns have a second set `…_after`, and classes also change, p, p_holm, q and verdict:
    hurt, helped, or "" where no change is shown (q above 0.05).
    """

    classes: pd.DataFrame
    fairness: pd.DataFrame
    pairs: pd.DataFrame
    images: tuple[int, ...]
    paired: bool | None = None  # None: one file
    notes: list[str] = field(default_factory=list)

    def named(self, verdict: str) -> pd.DataFrame:
        """The classes that were hurt or helped, the largest change first."""
        chosen = self.classes[self.classes["verdict"] == verdict]
        return chosen.sort_values("change", ascending=verdict == "hurt", kind="stable")

    def worst(self) -> pd.DataFrame:
        return self.classes.sort_values("accuracy", kind="stable")


# --------------------------------------------------------------------------------------------------------- reading


def read(source: Path | str | pd.DataFrame) -> pd.DataFrame:
    """label, prediction and, where it is there, id, as text; anything that is no such table is told in a sentence."""
    if isinstance(source, pd.DataFrame):
        name, frame = "the table", source
    else:
        path = Path(source)
        name, frame = path.name, _open(path)
    frame = frame.rename(columns=lambda column: str(column).strip().lower())
    others = [column for column in frame if column.startswith("pred")]
    if "prediction" not in frame and len(others) == 1:
        frame = frame.rename(columns={others[0]: "prediction"})
    absent = [column for column in ("label", "prediction") if column not in frame]
    if absent:
        raise ClamkitError(
            f"{name} has no column {' and no column '.join(absent)}: it needs label and prediction, separated by a "
            f"comma, and has {', '.join(frame.columns) or 'none'}."
        )
    if frame.empty:
        raise ClamkitError(f"{name} has a header and no rows: it needs one for each image.")
    frame = frame[["label", "prediction", *(["id"] if "id" in frame else [])]].reset_index(drop=True)
    return frame.apply(lambda column: _text(column, name))


def _open(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise ClamkitError(f"there is no file {paths.shown(path)}: give a CSV file with the columns label, prediction.")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    except pd.errors.EmptyDataError:
        raise ClamkitError(f"{path.name} is empty: it needs the columns label and prediction.") from None
    except Exception as error:
        raise ClamkitError(f"{path.name} cannot be read as a table ({error}).") from error


def _text(column: pd.Series, name: str) -> pd.Series:
    """Names without blanks around them; whole numbers that were written as 3.0 are 3."""
    bad = column.isna()
    text = column.astype(str).str.strip()
    bad |= text.str.lower().isin(["", "nan"])
    if bad.any():
        raise ClamkitError(
            f"{name} has no {column.name} in {bad.sum()} of {len(bad)} rows (first: line {bad.idxmax() + 2}): "
            "fill them in or leave the rows out."
        )
    return text.str.replace(r"\.0+$", "", regex=True) if text.str.fullmatch(r"-?\d+(\.0+)?").all() else text


def _pair(before: pd.DataFrame, after: pd.DataFrame) -> tuple[pd.DataFrame, bool, str]:
    """(the second table in the order of the first if that can be had, whether the rows are the same images, why)"""
    only = [sorted(set(a["label"]) - set(b["label"])) for a, b in ((before, after), (after, before))]
    if any(only):
        which, names = ("first", only[0]) if only[0] else ("second", only[1])
        raise ClamkitError(
            f"the two files have different classes: {len(names)} only in the {which} ({_some(names)}). "
            "Both must come from the same test set."
        )
    if "id" in before and "id" in after:
        for which, frame in (("first", before), ("second", after)):
            if frame["id"].duplicated().any():
                twice = frame["id"][frame["id"].duplicated()].iloc[0]
                raise ClamkitError(f"the {which} file has the id {twice!r} more than once.")
        if set(before["id"]) != set(after["id"]):
            alone = sorted(set(before["id"]) ^ set(after["id"]))
            raise ClamkitError(
                f"{len(alone)} ids are in one file only ({_some(alone)}): give predictions for the same images, or "
                "leave the id columns out to compare the files as independent samples."
            )
        after = after.set_index("id").loc[before["id"]].reset_index()
        if (after["label"] != before["label"]).any():
            differs = before["id"][after["label"] != before["label"]].iloc[0]
            raise ClamkitError(f"the image with id {differs!r} has another label in the second file.")
        return after, True, "The images are paired by id."
    if len(before) != len(after):
        return after, False, f"The files have {len(before):,} and {len(after):,} rows, so images cannot be paired."
    if (before["label"] != after["label"]).any():
        return after, False, "The labels of the two files are in different orders and there is no id to pair them by."
    return after, True, "The label columns agree row by row, so the rows are taken to be the same images."


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


# ------------------------------------------------------------------------------------------------------- diagnosing


def diagnose(predictions, augmented=None) -> Diagnosis:
    """What the predictions say about each class; with a second file, what the augmentation changed.

    predictions, augmented: files (CSV, also compressed, or Parquet) or data frames; see `read`.
    """
    tables = [read(predictions)]
    notes, paired = [], None
    names = sorted(tables[0]["label"].unique(), key=_order)
    if len(names) < 2:
        raise ClamkitError(f"all labels are {names[0]!r}: comparing classes needs at least two.")
    if augmented is not None:
        after, paired, why = _pair(tables[0], read(augmented))
        tables.append(after)
        notes.append(f"{why} Changes are tested with {TESTS[paired]}.")
    numbers = pd.Index(names)
    labels = [numbers.get_indexer(table["label"]) for table in tables]
    hits = [(table["label"] == table["prediction"]).to_numpy() for table in tables]
    for i, table in enumerate(tables):
        outside = ~table["prediction"].isin(names)
        of = "" if len(tables) == 1 else f" of the {('first', 'second')[i]} file"
        if outside.all():
            raise ClamkitError(
                f"no prediction{of} is among the labels: labels are like {_some(names, 3)}, predictions like "
                f"{_some(sorted(table['prediction'].unique()), 3)}. Both columns must use the same names."
            )
        if outside.any():
            which = _some(sorted(table.loc[outside, "prediction"].unique()))
            notes.append(f"{outside.sum():,} predictions{of} are no label of the data ({which}): counted as wrong.")
    classes = pd.DataFrame(index=pd.Index(names, name="class"))
    metrics = {}
    for suffix, y, hit in zip(("", "_after"), labels, hits, strict=False):
        seen, right = np.bincount(y), np.bincount(y[hit], minlength=len(names))
        low, high = wilson(right, seen, CONFIDENCE)
        columns = {"images": seen, "right": right, "accuracy": right / seen, "low": low, "high": high}
        classes[[name + suffix for name in columns]] = pd.DataFrame(columns).to_numpy()
        metrics[f"accuracy{suffix}"] = {**fairness(right / seen), "sampling_std": sampling_std(right, seen)}
    classes = classes.astype({column: int for column in classes if column.startswith(("images", "right"))})
    if augmented is not None:
        lost_won = [np.bincount(labels[0][hit], minlength=len(names)) for hit in _lost_won(*hits)] if paired else []
        counts = [classes[column] for column in ("right", "images", "right_after", "images_after")]
        tested = class_changes(*counts, *lost_won)
        classes[["lost", "won"][: len(lost_won)]] = np.array(lost_won).T.reshape(len(names), -1)
        classes[tested.columns] = tested.to_numpy()
        verdict = np.where(classes["change"] < 0, "hurt", "helped")
        classes["verdict"] = np.where(classes["q"] <= 1 - CONFIDENCE, verdict, "")
    return Diagnosis(
        classes, pd.DataFrame(metrics), _confused(tables), tuple(len(table) for table in tables), paired, notes
    )


def _order(name: str) -> tuple[float, str]:
    return (float(name), name) if name.lstrip("-").isdigit() else (np.inf, name)


def _lost_won(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return before & ~after, ~before & after


def _confused(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """(label, prediction) pairs that are wrong: their number and share of the class, most frequent first."""
    columns = {}
    for suffix, table in zip(("", "_after"), tables, strict=False):
        wrong = table[table["label"] != table["prediction"]]
        count = wrong.groupby(["label", "prediction"]).size()
        columns[f"count_wrong{suffix}"] = count
        sizes = table["label"].value_counts()
        columns[f"share{suffix}"] = count / sizes.loc[count.index.get_level_values(0)].to_numpy()
    pairs = pd.DataFrame(columns).fillna(0)
    pairs = pairs.astype({column: int for column in pairs if column.startswith("count")})
    most = pairs.filter(like="count").max(axis=1)
    return pairs.loc[most.sort_values(ascending=False, kind="stable").index].reset_index()


# ------------------------------------------------------------------------------------------------------ in words


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %".replace("-", "−")


def points(value: float) -> str:
    """A difference in percentage points; no sign at zero."""
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def p_value(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else "< 0.0001"


def sentences(result: Diagnosis) -> list[str]:
    """The diagnosis in a few lines."""
    worst, metrics = result.worst(), result.fairness["accuracy"]
    tail = tail_size(len(worst))
    right = percent(worst["right"].sum() / result.images[0])
    first, last = (f"{percent(worst['accuracy'].iloc[i])} ({worst.index[i]})" for i in (0, -1))
    lines = [
        f"{result.images[0]:,} images, {len(worst):,} classes: {right} right; class accuracies run from {first} to "
        f"{last}.",
        f"The worst 10 % of the classes ({tail:,}) average {percent(metrics['worst'])}, the best 10 % "
        f"{percent(metrics['best'])}. Std over classes {percent(metrics['std'])}; the choice of test images "
        f"alone would give {percent(metrics['sampling_std'])}.",
    ]
    if result.paired is not None:
        after = result.fairness["accuracy_after"]
        now = {
            metric: f"{percent(after[metric])} ({points(after[metric] - metrics[metric])})" for metric in metrics.index
        }
        hurt, helped = result.named("hurt"), result.named("helped")
        strict = (result.classes["p_holm"] <= 1 - CONFIDENCE).sum()
        passed = f"; {strict} of these {len(hurt) + len(helped)} pass Holm's stricter correction too"
        lines += [
            f"With augmentation (in brackets the change in points): average {now['average']}, worst 10 % "
            f"{now['worst']}, std {now['std']}.",
            f"It hurt {_listed(hurt)} and helped {_listed(helped)} (significant at a false discovery rate of 5 %"
            f"{passed if len(hurt) + len(helped) else ''}).",
        ]
    if len(result.pairs):
        pair = result.pairs.iloc[0]
        shares = f"{percent(pair['share'], 0)} of its images"
        if result.paired is not None:
            shares += f", with augmentation {percent(pair['share_after'], 0)}"
        lines.append(f"Confused most: {pair['label']} taken for {pair['prediction']}, {shares}.")
    return lines


def _listed(classes: pd.DataFrame, most: int = 3) -> str:
    if classes.empty:
        return "no class"
    names = [f"{row.Index} {points(row.change)}" for row in classes.head(most).itertuples()]
    more = f", and {len(classes) - most} more" if len(classes) > most else ""
    return f"{len(classes)} class{'es' if len(classes) > 1 else ''} ({', '.join(names)}{more})"


# ------------------------------------------------------------------------------------------------------- the page


def _label(name: str, width: int = 24) -> str:
    """A class name on an axis: its middle cut out, and no formula in it."""
    cut = name if len(name) <= width else f"{name[: width // 2]}…{name[-(width // 2 - 1) :]}"
    return cut.replace("$", r"\$")


def _intervals(axis, rows: pd.DataFrame) -> None:
    """A line a class, first on top: accuracy and its interval, before and after."""
    y = np.arange(len(rows))[::-1]
    both = "accuracy_after" in rows
    for suffix, colour, text, shift in (("", BEFORE, "without", 0.14), ("_after", AFTER, "with augmentation", -0.14)):
        if f"accuracy{suffix}" in rows:
            at = y + shift * both
            axis.hlines(at, rows[f"low{suffix}"], rows[f"high{suffix}"], color=colour, alpha=0.45, lw=2.4)
            axis.plot(rows[f"accuracy{suffix}"], at, "o", color=colour, ms=4.5, label=text)
    axis.set(yticks=y, yticklabels=[_label(name) for name in rows.index], ylim=(-0.6, len(rows) - 0.4))
    axis.set_xlabel("accuracy, 95 % interval")
    axis.xaxis.set_major_formatter(PERCENT)
    axis.grid(axis="y", visible=False)


@styled
def figure_classes(result: Diagnosis) -> Figure:
    """All classes by name where they fit; else their sorted accuracies and a histogram."""
    worst = result.worst()
    both = result.paired is not None
    if len(worst) <= FEW:
        figure, axis = plt.subplots(figsize=(7.2, 0.9 + (0.32 if both else 0.25) * len(worst)))
        _intervals(axis, worst)
        if both:
            figure.legend(loc="outside upper center", ncols=2)
        return figure
    figure, (curve, bars) = plt.subplots(1, 2, figsize=(9, 3.1), width_ratios=(1.5, 1))
    x = np.arange(1, len(worst) + 1)
    tail = tail_size(len(worst))
    per_class = int(worst["images"].median())  # bins hold whole steps of one image, else the bars are jagged
    width = max(1, round(per_class / np.clip(len(worst) // 8, 8, 25)))
    edges = (np.arange(0, per_class + 1 + width, width) - 0.5) / per_class
    for start, text in ((0.5, "worst 10 %"), (len(worst) - tail + 0.5, "best 10 %")):
        curve.axvspan(start, start + tail, color="#f0f0f0", lw=0)
        curve.text(start + tail / 2, 0.02, text, ha="center", va="bottom", fontsize=7, color="#555555", rotation=90)
    for suffix, colour, text in (("", BEFORE, "without"), ("_after", AFTER, "with augmentation")):
        if f"accuracy{suffix}" in worst:
            rows = worst.sort_values(f"accuracy{suffix}")
            curve.fill_between(x, rows[f"low{suffix}"], rows[f"high{suffix}"], color=colour, alpha=0.15, lw=0)
            curve.plot(x, rows[f"accuracy{suffix}"], color=colour, label=text)
            bars.hist(rows[f"accuracy{suffix}"], edges, histtype="step", color=colour, lw=1.6)
            bars.hist(rows[f"accuracy{suffix}"], edges, color=colour, alpha=0.2)
    curve.set(title="sorted, with 95 % intervals", xlabel="classes, worst first", ylabel="accuracy", ylim=(0, 1.02))
    curve.set_xlim(0.5, len(worst) + 0.5)
    curve.yaxis.set_major_formatter(PERCENT)
    bars.set(title="histogram", xlabel="accuracy", ylabel="classes", xlim=(0, edges[-1]))
    bars.xaxis.set_major_formatter(PERCENT)
    if both:
        figure.legend(*curve.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


@styled
def figure_changes(result: Diagnosis) -> Figure:
    """Accuracy with augmentation against without, a point a class; beside it the classes that lost and won most."""
    classes = result.classes
    extremes = classes.sort_values("change", kind="stable")
    shown = pd.concat([extremes.head(8), extremes.tail(8)])
    figure, (points_, names) = plt.subplots(1, 2, figsize=(9, 4.4), width_ratios=(1, 0.9))
    points_.axline((0, 0), slope=1, color="#9a9a9a", lw=1)
    for verdict, colour, text in (
        ("", "#b5b5b5", "no change shown"),
        ("helped", HELPED, "helped"),
        ("hurt", AFTER, "hurt"),
    ):
        rows = classes[classes["verdict"] == verdict]
        points_.scatter(rows["accuracy"], rows["accuracy_after"], s=14, color=colour, lw=0, alpha=0.8)
        points_.scatter([], [], s=22, color=colour, label=f"{text} ({len(rows):,})")
    points_.set(title="each class", xlabel="accuracy without", ylabel="accuracy with augmentation", aspect="equal")
    points_.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    points_.xaxis.set_major_formatter(PERCENT)
    points_.yaxis.set_major_formatter(PERCENT)
    points_.legend(loc="upper left")
    _intervals(names, shown)
    names.axhline(len(shown) - 8.5, color="#9a9a9a", lw=1)
    names.set_title("8 that lost most, 8 that won most")
    names.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    return figure


def _png(figure: Figure) -> str:
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a script that the font lacks; the tables have the name
        figure.savefig(data, format="png", dpi=150)
    plt.close(figure)
    return base64.b64encode(data.getvalue()).decode()


def html(result: Diagnosis, title: str = "Class by class") -> str:
    """One self-contained page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    page = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page.filters |= {"percent": percent, "points": points, "p": p_value}
    figures = {"classes": _png(figure_classes(result))}
    if result.paired is not None and len(result.classes) > FEW:
        figures["changes"] = _png(figure_changes(result))
    worst = result.worst()
    return page.get_template("diagnose.html").render(
        title=title,
        result=result,
        sentences=sentences(result),
        figures=figures,
        most=MOST,
        worst=worst,
        hurt=result.named("hurt") if result.paired is not None else None,
        helped=result.named("helped") if result.paired is not None else None,
        test=TESTS.get(result.paired),
    )


def write_html(result: Diagnosis, path: Path | str, title: str = "Class by class") -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(result, title), encoding="utf-8")
    return path


def report(predictions: Path, augmented: Path | None, out: Path) -> str:
    """Write the page to `out` and return the diagnosis in a few lines."""
    result = diagnose(predictions, augmented)
    title = Path(predictions).name + (f", with augmentation {Path(augmented).name}" if augmented else "")
    write_html(result, out, title)
    return "\n".join([*sentences(result), *result.notes, f"page: {paths.shown(out)}"])
