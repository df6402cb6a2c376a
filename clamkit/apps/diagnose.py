"""Diagnose before you fix: what the predictions of any model say about its classes, and what changed between two.

`clamkit.apps.predictions` reads them, `clamkit.apps.diagnose_page` makes the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from clamkit.apps.predictions import Predictions, Source, read
from clamkit.apps.words import changes, percent, points, share, some
from clamkit.errors import ClamkitError
from clamkit.metrics import class_changes, fairness, sampling_std, tail_size, wilson
from clamkit.metrics.bootstrap import fairness_intervals

CONFIDENCE = 0.95
COLUMNS = ("accuracy", "low", "high", "confidence", "precision", "gap")  # of each model, for each class
CHANGES = ("change", "lost", "won", "p", "p_holm", "q", "verdict")
PROFILE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SIDES = ("without", "with augmentation")  # what two files are called where nothing else is said
TESTS = {
    True: "McNemar's exact test on the images that one model got right and the other wrong",
    False: "Fisher's exact test of two independent samples",
}


@dataclass(frozen=True)
class Diagnosis:
    """classes: one row a class; fairness: one row a metric; pairs: what was taken for what. Fractions, not percent.

    fairness has each metric with the ends of its 95 % interval (low, high), the std that sampling alone gives, and the
    share of the variance that this is (noise). profile: share of the classes below each accuracy.
    With a second model the columns have a second set `…_after`, and classes also change, p, p_holm, q and verdict:
    hurt, helped, or "" where no change is shown (q above 0.05).
    With probabilities classes also have confidence and precision of the images taken for the class, and their gap.
    """

    classes: pd.DataFrame
    fairness: pd.DataFrame
    pairs: pd.DataFrame
    images: tuple[int, ...]
    paired: bool | None = None  # None: one file
    notes: list[str] = field(default_factory=list)
    titles: tuple[str, ...] = SIDES

    @property
    def profile(self) -> pd.DataFrame:
        columns = {name: values for name, values in self.classes.items() if str(name) in ("accuracy", "accuracy_after")}
        below = {name: [(values < limit - 1e-12).mean() for limit in PROFILE] for name, values in columns.items()}
        return pd.DataFrame(below, index=pd.Index(PROFILE, name="below"))

    def named(self, verdict: str) -> pd.DataFrame:
        """The classes that were hurt or helped, the largest change first."""
        chosen = self.classes[self.classes["verdict"] == verdict]
        return chosen.sort_values("change", ascending=verdict == "hurt", kind="stable")

    def worst(self) -> pd.DataFrame:
        return self.classes.sort_values("accuracy", kind="stable")


# --------------------------------------------------------------------------------------------------------- pairing


def _pair(before: pd.DataFrame, after: pd.DataFrame) -> tuple[pd.DataFrame, bool, str]:
    """(the second table in the order of the first if that can be had, whether the rows are the same images, why)"""
    only = [sorted(set(a["label"]) - set(b["label"])) for a, b in ((before, after), (after, before))]
    if any(only):
        which, names = ("first", only[0]) if only[0] else ("second", only[1])
        raise ClamkitError(
            f"the two files have different classes: {len(names)} only in the {which} ({some(names)}). "
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
                f"{len(alone)} ids are in one file only ({some(alone)}): give predictions for the same images, or "
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


# ------------------------------------------------------------------------------------------------------- diagnosing


def diagnose(predictions: Source, augmented: Source | None = None, titles: tuple[str, ...] = SIDES) -> Diagnosis:
    """What the predictions say about each class; with a second model, what is different there.

    predictions, augmented: files, run folders or data frames, see `clamkit.apps.predictions`.
    """
    models = [read(predictions)]
    tables = [models[0].table]
    notes, paired = [], None
    names = sorted(tables[0]["label"].unique(), key=_order)
    if len(names) < 2:
        raise ClamkitError(f"all labels are {names[0]!r}: comparing classes needs at least two.")
    if augmented is not None:
        models.append(read(augmented))
        after, paired, why = _pair(tables[0], models[1].table)
        tables.append(after)
        notes.append(f"{why} Changes are tested with {TESTS[paired]}.")
    for i, (model, table) in enumerate(zip(models, tables, strict=True)):
        of = "" if len(tables) == 1 else f" of the {('first', 'second')[i]} file"
        notes += _remarks(table, names, of)
        if model.differs:
            notes.append(f"{model.differs:,} predictions{of} are not the class with the largest score: taken as given.")
    numbers = pd.Index(names)
    labels = [numbers.get_indexer(table["label"]) for table in tables]
    hits = [(table["label"] == table["prediction"]).to_numpy() for table in tables]
    classes, metrics = pd.DataFrame(index=pd.Index(names, name="class")), {}
    for suffix, model, y, hit in zip(("", "_after"), models, labels, hits, strict=False):
        seen, right = np.bincount(y), np.bincount(y[hit], minlength=len(names))
        low, high = wilson(right, seen, CONFIDENCE)
        columns = {"images": seen, "right": right, "accuracy": right / seen, "low": low, "high": high}
        columns |= _calibration(model, numbers)
        for name, values in columns.items():
            classes[name + suffix] = values
        found, chance = fairness(right / seen), sampling_std(right, seen)
        noise = min(1.0, (chance / found["std"]) ** 2) if found["std"] else 0.0
        metrics[f"accuracy{suffix}"] = {**found, "sampling_std": chance, "noise": noise}
        ends = fairness_intervals(right, seen, CONFIDENCE)
        metrics |= {f"{end}{suffix}": ends[end].to_dict() for end in ends}
    if augmented is not None:
        before, now = hits
        if paired:
            for name, hit in (("lost", before & ~now), ("won", ~before & now)):
                classes[name] = np.bincount(labels[0][hit], minlength=len(names))
        counts = ("right", "images", "right_after", "images_after", *(("lost", "won") if paired else ()))
        classes = classes.join(class_changes(*(classes[column] for column in counts)).set_axis(classes.index))
        verdict = np.where(classes["change"] < 0, "hurt", "helped")
        classes["verdict"] = np.where(classes["q"] <= 1 - CONFIDENCE, verdict, "")
    images = tuple(len(table) for table in tables)
    return Diagnosis(classes, pd.DataFrame(metrics), _confused(tables), images, paired, notes, titles[: len(tables)])


def _calibration(model: Predictions, classes: pd.Index) -> dict[str, np.ndarray]:
    """Of the images whose largest probability is a class's: how sure the model is, how often it is right, the gap."""
    if model.scores is None:
        return {}
    columns = classes.get_indexer(model.names)[model.scores.argmax(axis=1)]  # -1: a class without images
    logits = model.scores.astype(np.float32 if model.scores.dtype != np.float64 else np.float64)
    logits = logits - logits.max(axis=1, keepdims=True)
    sure = 1 / np.exp(logits).sum(axis=1)
    right = classes.get_indexer(model.table["label"]) == columns
    taken = np.bincount(columns[columns >= 0], minlength=len(classes))
    with np.errstate(invalid="ignore"):  # no image was taken for the class: nan
        confidence, precision = (
            np.bincount(columns[columns >= 0], values[columns >= 0], minlength=len(classes)) / taken
            for values in (sure, right.astype(float))
        )
    return {"confidence": confidence, "precision": precision, "gap": confidence - precision}


def _remarks(table: pd.DataFrame, names: list[str], of: str) -> list[str]:
    """What a reader must know about a table: images that are in it twice, predictions that no label has."""
    remarks = []
    if "id" in table and (again := table["id"].duplicated()).any():
        which = some(list(table.loc[again, "id"].unique()))
        remarks.append(f"Some ids{of} come more than once ({which}): each row is counted as an image of its own.")
    outside = ~table["prediction"].isin(names)
    which = some(sorted(table.loc[outside, "prediction"].unique()))
    if outside.all():
        raise ClamkitError(
            f"no prediction{of} is among the labels: labels are like {some(names, 3)}, predictions like "
            f"{which}. Both columns must use the same names."
        )
    if outside.any():
        remarks.append(f"{outside.sum():,} predictions{of} are no label of the data ({which}): counted as wrong.")
    return remarks


def _order(name: str) -> tuple[float, str]:
    """Numbers first, in the order of numbers."""
    return (float(name), name) if re.fullmatch(r"-?\d+", name) else (np.inf, name)


def _confused(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """(label, prediction) pairs that are wrong: their number and share of the class, most frequent first."""
    parts = []
    for suffix, table in zip(("", "_after"), tables, strict=False):
        wrong = table[table["label"] != table["prediction"]]
        count = wrong.groupby(["label", "prediction"]).size()
        sizes = table["label"].value_counts()
        shares = count / sizes.loc[count.index.get_level_values(0)].to_numpy()
        parts.append(pd.DataFrame({f"count_wrong{suffix}": count, f"share{suffix}": shares}))
    pairs = pd.concat(parts, axis=1).fillna(0)
    pairs = pairs.astype(dict.fromkeys(pairs.filter(like="count"), int))
    most = pairs.filter(like="count").max(axis=1)
    return pairs.loc[most.sort_values(ascending=False, kind="stable").index].reset_index()


# ------------------------------------------------------------------------------------------------------ in words


def sentences(result: Diagnosis) -> list[str]:
    """The diagnosis in a few lines."""
    worst, metrics, ends = result.worst(), result.fairness["accuracy"], result.fairness[["low", "high"]]
    tail = tail_size(len(worst))
    right = percent(worst["right"].sum() / result.images[0])
    first, last = (f"{percent(worst['accuracy'].iloc[i])} ({worst.index[i]})" for i in (0, -1))
    low = worst["accuracy"].to_numpy()
    lines = [
        f"{result.images[0]:,} images, {len(worst):,} classes: {right} right; class accuracies run from {first} to "
        f"{last}.",
        f"The worst 10 % of the classes ({tail:,}) average {percent(metrics['worst'])} (truly "
        f"{_range(ends.loc['worst'])}, 95 % sure), the best 10 % {percent(metrics['best'])} "
        f"({_range(ends.loc['best'])}); "
        f"{(low < 0.5).sum():,} classes are below 50 %, {(low < 0.8).sum():,} below 80 %.",
        f"Std over classes {percent(metrics['std'])} ({_range(ends.loc['std'])}); the choice of test images alone "
        f"would give {percent(metrics['sampling_std'])}, {share(metrics['noise'])} of the variance.",
    ]
    if "gap" in worst:
        gap = worst["gap"].dropna().sort_values()
        lines.append(
            f"Confidence minus precision of the classes predicted: from {points(gap.iloc[0])} ({gap.index[0]}) to "
            f"{points(gap.iloc[-1])} points ({gap.index[-1]}); above 0 is too sure."
        )
    plain = result.titles == SIDES
    if result.paired is not None:
        after = result.fairness["accuracy_after"]
        now = {
            metric: f"{percent(after[metric])} ({points(after[metric] - metrics[metric])})" for metric in metrics.index
        }
        hurt, helped = (result.named(verdict)["change"].to_dict() for verdict in ("hurt", "helped"))
        strict = (result.classes["p_holm"] <= 1 - CONFIDENCE).sum()
        passed = f"; {strict} of these {len(hurt) + len(helped)} pass Holm's stricter correction too"
        change = result.classes["change"]
        lines += [
            f"{'With augmentation' if plain else result.titles[1]} (in brackets the change in points): average "
            f"{now['average']}, worst 10 % {now['worst']}, std {now['std']}.",
            f"It hurt {changes(hurt)} and helped {changes(helped)} (significant at a false discovery rate of 5 %"
            f"{passed if len(hurt) + len(helped) else ''}).",
            f"Shown or not, {(change > 0).sum():,} gain, {points(change[change > 0].sum() / len(change))} points of "
            f"the average, and {(change < 0).sum():,} pay {points(change[change < 0].sum() / len(change))}.",
        ]
    if len(result.pairs):
        pair = result.pairs.iloc[0]
        names = ("without", "with") if plain else (*result.titles, "")[:2]
        shares, when = {names[0]: pair["share"], names[1]: pair.get("share_after", 0.0)}, ""
        more, less = sorted(shares, key=lambda key: -shares[key])
        found = f"{share(shares[more])} of its images"
        if result.paired is not None and shares[more] == shares[less]:
            found += ", with and without augmentation" if plain else ", in both"
        elif result.paired is not None:
            when = f" {more} augmentation" if plain else f" in {more}"
            found = f"{found}; {less}: {share(shares[less])}"
        lines.append(f"Confused most{when}: {pair['label']} taken for {pair['prediction']}, {found}.")
    return lines


def _range(ends: pd.Series) -> str:
    return f"{100 * ends.iloc[0]:.1f}–{percent(ends.iloc[1])}"


def as_json(results: Sequence[Diagnosis], advice: Sequence[str]) -> dict[str, Any]:
    """Everything that the page shows, as plain values; nan is null."""
    models: dict[str, Any] = {}
    for result in results:
        for i, (suffix, title) in enumerate(zip(("", "_after"), result.titles, strict=False)):
            columns = [c for c in ("images", "right", *COLUMNS) if c + suffix in result.classes]
            classes = result.classes[[c + suffix for c in columns]].set_axis(columns, axis=1)
            if i:
                classes = classes.join(result.classes[[c for c in CHANGES if c in result.classes]])
            metrics = result.fairness[[c + suffix for c in ("accuracy", "low", "high")]]
            metrics = metrics.set_axis(["value", "low", "high"], axis=1)
            models.setdefault(title, {
                "images": result.images[i],
                "fairness": _plain(metrics.T.to_dict()),
                "profile": {f"{limit:g}": share for limit, share in result.profile[f"accuracy{suffix}"].items()},
                "classes": _plain(classes.T.to_dict()),
                "hurt": list(result.named("hurt").index) if i else None,  # None: what the others are compared with
                "helped": list(result.named("helped").index) if i else None,
            })  # fmt: skip
    said = {"sentences": [sentences(result) for result in results], "notes": [result.notes for result in results]}
    return {"models": models, **said, "advice": list(advice)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
