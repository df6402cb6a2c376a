"""Diagnose before you fix: what the predictions of any model say about its classes, and what augmentation did to them.

The input is a file with a row for each image and the columns label and prediction, names or numbers, optionally id.
`clamkit.apps.diagnose_page` makes the page of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from clamkit.apps.predictions import Source, read
from clamkit.apps.words import changes, percent, points, share, some
from clamkit.errors import ClamkitError
from clamkit.metrics import class_changes, fairness, sampling_std, tail_size, wilson

CONFIDENCE = 0.95
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


def diagnose(predictions: Source, augmented: Source | None = None) -> Diagnosis:
    """What the predictions say about each class; with a second file, what the augmentation changed.

    predictions, augmented: files (CSV, also compressed, or Parquet) or data frames; see `read`.
    """
    tables = [read(predictions).table]
    notes, paired = [], None
    names = sorted(tables[0]["label"].unique(), key=_order)
    if len(names) < 2:
        raise ClamkitError(f"all labels are {names[0]!r}: comparing classes needs at least two.")
    if augmented is not None:
        after, paired, why = _pair(tables[0], read(augmented).table)
        tables.append(after)
        notes.append(f"{why} Changes are tested with {TESTS[paired]}.")
    for i, table in enumerate(tables):
        notes += _remarks(table, names, "" if len(tables) == 1 else f" of the {('first', 'second')[i]} file")
    numbers = pd.Index(names)
    labels = [numbers.get_indexer(table["label"]) for table in tables]
    hits = [(table["label"] == table["prediction"]).to_numpy() for table in tables]
    classes = pd.DataFrame(index=pd.Index(names, name="class"))
    metrics = {}
    for suffix, y, hit in zip(("", "_after"), labels, hits, strict=False):
        seen, right = np.bincount(y), np.bincount(y[hit], minlength=len(names))
        low, high = wilson(right, seen, CONFIDENCE)
        columns = {"images": seen, "right": right, "accuracy": right / seen, "low": low, "high": high}
        for name, values in columns.items():
            classes[name + suffix] = values
        metrics[f"accuracy{suffix}"] = {**fairness(right / seen), "sampling_std": sampling_std(right, seen)}
    if augmented is not None:
        before, now = hits
        if paired:
            for name, hit in (("lost", before & ~now), ("won", ~before & now)):
                classes[name] = np.bincount(labels[0][hit], minlength=len(names))
        counts = ("right", "images", "right_after", "images_after", *(("lost", "won") if paired else ()))
        classes = classes.join(class_changes(*(classes[column] for column in counts)).set_axis(classes.index))
        verdict = np.where(classes["change"] < 0, "hurt", "helped")
        classes["verdict"] = np.where(classes["q"] <= 1 - CONFIDENCE, verdict, "")
    return Diagnosis(
        classes, pd.DataFrame(metrics), _confused(tables), tuple(len(table) for table in tables), paired, notes
    )


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
        hurt, helped = (result.named(verdict)["change"].to_dict() for verdict in ("hurt", "helped"))
        strict = (result.classes["p_holm"] <= 1 - CONFIDENCE).sum()
        passed = f"; {strict} of these {len(hurt) + len(helped)} pass Holm's stricter correction too"
        lines += [
            f"With augmentation (in brackets the change in points): average {now['average']}, worst 10 % "
            f"{now['worst']}, std {now['std']}.",
            f"It hurt {changes(hurt)} and helped {changes(helped)} (significant at a false discovery rate of 5 %"
            f"{passed if len(hurt) + len(helped) else ''}).",
        ]
    if len(result.pairs):
        pair = result.pairs.iloc[0]
        shares, when = {"without": pair["share"], "with": pair.get("share_after", 0.0)}, ""
        more, less = sorted(shares, key=lambda key: -shares[key])
        found = f"{share(shares[more])} of its images"
        if result.paired is not None and shares[more] == shares[less]:
            found += ", with and without augmentation"
        elif result.paired is not None:
            when, found = f" {more} augmentation", f"{found}; {less}: {share(shares[less])}"
        lines.append(f"Confused most{when}: {pair['label']} taken for {pair['prediction']}, {found}.")
    return lines
