"""Diagnose before you fix: what the predictions of any model say about its classes, and what changed between models.

`clamkit.apps.predictions` reads them, `clamkit.apps.diagnose_page` makes the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from clamkit.apps.intervals import class_changes, fairness_intervals, sampling_std, wilson
from clamkit.apps.predictions import Predictions, Source, read
from clamkit.apps.words import changes, percent, points, share, some
from clamkit.errors import ClamkitError
from clamkit.metrics import fairness, tail_size

CONFIDENCE = 0.95
PROFILE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
TESTS = {
    True: "McNemar's exact test on the images that one model got right and the other wrong",
    False: "Fisher's exact test of two independent samples",
}


@dataclass(frozen=True, eq=False)
class Model:
    """One model, in fractions, not percent.

    classes   a row a class: images, right, accuracy, low, high (95 % interval); with scores also confidence and
              precision of the images taken for the class, and their gap
    fairness  a row a metric: value, low, high; also the std that sampling alone gives, and the share of the variance
              that this is (noise)
    confused  (label, prediction) that are wrong: count, and share of the class
    changes   against the first model, a row a class: change, p, p_holm, q and verdict (hurt, helped, or "" where no
              change is shown: q above 0.05); where the images are the same also lost and won
    """

    title: str
    images: int
    classes: pd.DataFrame
    fairness: pd.DataFrame
    confused: pd.DataFrame
    changes: pd.DataFrame | None = None
    paired: bool | None = None  # None: the first model

    @property
    def table(self) -> pd.DataFrame:
        """Classes and changes side by side."""
        return self.classes if self.changes is None else self.classes.join(self.changes)

    @property
    def profile(self) -> pd.DataFrame:
        """Share of the classes below each accuracy."""
        below = [(self.classes["accuracy"] < limit - 1e-12).mean() for limit in PROFILE]
        return pd.DataFrame({"accuracy": below}, index=pd.Index(PROFILE, name="below"))

    def named(self, verdict: str) -> pd.DataFrame:
        """The classes that were hurt or helped, the largest change first."""
        chosen = self.table.query("verdict == @verdict")
        return chosen.sort_values("change", ascending=verdict == "hurt", kind="stable")

    def worst(self) -> pd.DataFrame:
        return self.classes.sort_values("accuracy", kind="stable")


@dataclass(frozen=True, eq=False)
class Diagnosis(Model):
    """A model, and others compared with it."""

    others: Sequence[Model] = ()
    notes: Sequence[str] = ()

    @property
    def models(self) -> list[Model]:
        return [self, *self.others]

    @property
    def titles(self) -> list[str]:
        return [model.title for model in self.models]

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Those of all models, count and share by title; the most frequent under any of them first."""
        pairs = pd.concat([model.confused for model in self.models], axis=1, keys=self.titles).fillna(0)
        most = pairs.xs("count", axis=1, level=1).max(axis=1)
        return pairs.loc[most.sort_values(ascending=False, kind="stable").index]


# --------------------------------------------------------------------------------------------------------- pairing


def _pair(before: pd.DataFrame, after: pd.DataFrame, titles: tuple[str, str]) -> tuple[pd.DataFrame, bool, str]:
    """(the second table in the order of the first if that can be had, whether the rows are the same images, why)"""
    first, second = titles
    only = [sorted(set(a["label"]) - set(b["label"])) for a, b in ((before, after), (after, before))]
    for title, names in zip(titles, only, strict=True):
        if names:
            raise ClamkitError(
                f"{first} and {second} have different classes: {len(names)} only in {title} ({some(names)}). "
                "Both must come from the same test set."
            )
    if "id" in before and "id" in after:
        for title, frame in ((first, before), (second, after)):
            if len(twice := frame["id"][frame["id"].duplicated()]):
                raise ClamkitError(
                    f"{title} has the id {twice.iloc[0]!r} more than once: give each image an id of its own, or leave "
                    "the id columns out."
                )
        if alone := sorted(set(before["id"]) ^ set(after["id"])):
            raise ClamkitError(
                f"{len(alone)} ids are in only one of {first} and {second} ({some(alone)}): give predictions for the "
                "same images, or leave the id columns out to compare the files as independent samples."
            )
        after = after.set_index("id").loc[before["id"]].reset_index()
        if (differs := after["label"] != before["label"]).any():
            raise ClamkitError(f"the image with id {before['id'][differs].iloc[0]!r} has another label in {second}.")
        return after, True, "The images are paired by id."
    if len(before) != len(after):
        return after, False, f"{first} has {len(before):,} rows, {second} {len(after):,}: images cannot be paired."
    if (before["label"] != after["label"]).any():
        return after, False, f"The labels of {first} and {second} are in different orders, and no id pairs them."
    return after, True, "The label columns agree row by row, so the rows are taken to be the same images."


# ------------------------------------------------------------------------------------------------------- diagnosing


def diagnose(*sources: Source, titles: Sequence[str] | None = None) -> Diagnosis:
    """What the predictions of a model say about each class; of further models, what is different there.

    sources: files, run folders or data frames, see `clamkit.apps.predictions`; titles: what they are called.
    """
    given = [read(source) for source in sources]
    titles = _distinct(list(titles or (model.title for model in given)))
    first = given[0].table
    names = pd.Index(sorted(first["label"].unique(), key=_order), name="class")
    if len(names) < 2:
        raise ClamkitError(
            f"all labels are {names[0]!r} (rows: {len(first):,}): comparing classes needs images of at least two."
        )
    models: list[Model] = []
    notes, remarks = [], []
    first_hit = (first["label"] == first["prediction"]).to_numpy()
    for model, title in zip(given, titles, strict=True):
        table, paired, compared = model.table, None, None
        if models:
            table, paired, why = _pair(first, table, (titles[0], title))
            notes.append(f"{why} Changes are tested with {TESTS[paired]}.")
        remarks += _remarks(table, names, model.differs, f" of {title}" if len(given) > 1 else "")
        labels = names.get_indexer(table["label"])
        hit = (table["label"] == table["prediction"]).to_numpy()
        seen, right = np.bincount(labels), np.bincount(labels[hit], minlength=len(names))
        low, high = wilson(right, seen, CONFIDENCE)
        columns = {"images": seen, "right": right, "accuracy": right / seen, "low": low, "high": high}
        classes = pd.DataFrame(columns | _calibration(model, names), index=names)
        if models:
            groups = {"lost": first_hit & ~hit, "won": ~first_hit & hit} if paired else {}
            moved = {name: np.bincount(labels[group], minlength=len(names)) for name, group in groups.items()}
            before = models[0].classes
            compared = class_changes(before["right"], before["images"], right, seen, **moved).set_axis(names)
            verdict = np.select([compared["q"] > 1 - CONFIDENCE, compared["change"] < 0], ["", "hurt"], "helped")
            compared = compared.assign(**moved, verdict=verdict)
        models.append(Model(title, len(table), classes, _fairness(right, seen), _confused(table), compared, paired))
    return Diagnosis(**vars(models[0]), others=models[1:], notes=[*dict.fromkeys(notes), *remarks])


def _distinct(titles: list[str]) -> list[str]:
    """Two files may have one name in two folders."""
    return [f"{t} ({titles[:i].count(t) + 1})" if titles.count(t) > 1 else t for i, t in enumerate(titles)]


def _order(name: str) -> tuple[float, str]:
    """Numbers first, in the order of numbers."""
    return (float(name), name) if re.fullmatch(r"-?\d+", name) else (np.inf, name)


def _fairness(right: np.ndarray, seen: np.ndarray) -> pd.DataFrame:
    found, chance = fairness(right / seen), sampling_std(right, seen)
    noise = min(1.0, (chance / found["std"]) ** 2) if found["std"] else 0.0
    values = {**found, "sampling_std": chance, "noise": noise}
    return pd.DataFrame({"value": values}).join(fairness_intervals(right, seen, CONFIDENCE))


def _calibration(model: Predictions, classes: pd.Index) -> dict[str, np.ndarray]:
    """Of the images whose largest probability is a class's: how sure the model is, how often it is right, the gap."""
    if model.scores is None:
        return {}
    columns = classes.get_indexer(model.names)[model.scores.argmax(axis=1)]  # -1: a class without images
    logits = model.scores.astype(np.float32 if model.scores.dtype != np.float64 else np.float64)
    logits = logits - logits.max(axis=1, keepdims=True)
    sure = 1 / np.exp(logits).sum(axis=1)
    right = classes.get_indexer(model.table["label"]) == columns
    taken = pd.DataFrame({"confidence": sure.astype(np.float64), "precision": right}).groupby(columns).mean()
    taken = taken.reindex(range(len(classes))).set_axis(classes)  # nan where no image was taken for the class
    return {**taken, "gap": taken["confidence"] - taken["precision"]}


def _remarks(table: pd.DataFrame, names: pd.Index, differs: int, of: str) -> list[str]:
    """What a reader must know about a table: images that are in it twice, predictions that are odd."""
    remarks = []
    if "id" in table and (again := table["id"].duplicated()).any():
        which = some(list(table.loc[again, "id"].unique()))
        remarks.append(f"Some ids{of} come more than once ({which}): each row is counted as an image of its own.")
    outside = ~table["prediction"].isin(names)
    which = some(sorted(table.loc[outside, "prediction"].unique()))
    if outside.all():
        raise ClamkitError(
            f"no prediction{of} is among the labels: labels are like {some(list(names), 3)}, predictions like "
            f"{which}. Both columns must use the same names."
        )
    if outside.any():
        remarks.append(f"{outside.sum():,} predictions{of} are no label of the data ({which}): counted as wrong.")
    if differs:
        remarks.append(f"{differs:,} predictions{of} are not the class with the largest score: taken as given.")
    return remarks


def _confused(table: pd.DataFrame) -> pd.DataFrame:
    wrong = table[table["label"] != table["prediction"]]
    count = wrong.groupby(["label", "prediction"]).size()
    sizes = table["label"].value_counts()
    return pd.DataFrame({"count": count, "share": count / sizes.loc[count.index.get_level_values(0)].to_numpy()})


# ------------------------------------------------------------------------------------------------------ in words


def sentences(result: Diagnosis) -> list[str]:
    """The diagnosis in a few lines."""
    worst = result.worst()
    metrics, ends, low = result.fairness["value"], result.fairness[["low", "high"]], worst["accuracy"]
    tail, right = tail_size(len(worst)), percent(worst["right"].sum() / result.images)
    span = " to ".join(f"{percent(low.iloc[i])} ({worst.index[i]})" for i in (0, -1))
    gets, the, std = (f"{result.title} gets {right}", "its", "Its std") if result.others else (right, "the", "Std")
    lines = [
        f"{result.images:,} images, {len(worst):,} classes: {gets} right; class accuracies run from {span}.",
        f"The worst 10 % of {the} classes ({tail:,}) average {percent(metrics['worst'])} (truly "
        f"{_range(ends.loc['worst'])}, 95 % sure), the best 10 % {percent(metrics['best'])} ("
        f"{_range(ends.loc['best'])}); below 50 % are {(low < 0.5).sum():,}, below 80 % {(low < 0.8).sum():,}.",
        f"{std} over classes {percent(metrics['std'])} ({_range(ends.loc['std'])}); the choice of test images alone "
        f"would give {percent(metrics['sampling_std'])}, {share(metrics['noise'])} of the variance.",
    ]
    if "gap" in worst:
        gap = worst["gap"].dropna().sort_values()
        lines.append(
            f"Confidence minus precision of the classes predicted: from {points(gap.iloc[0])} ({gap.index[0]}) to "
            f"{points(gap.iloc[-1])} points ({gap.index[-1]}); above 0 is too sure."
        )
    for model in result.others:
        lines += _compared(model, metrics)
    return [*lines, *_most_confused(result)]


def _range(ends: pd.Series) -> str:
    return f"{100 * ends.iloc[0]:.1f}–{percent(ends.iloc[1])}"


def _compared(model: Model, before: pd.Series) -> list[str]:
    """What changed from the metrics of the first model."""
    assert model.changes is not None
    metrics = model.fairness["value"].items()
    now = {name: f"{percent(value)} ({points(value - before[name])})" for name, value in metrics}
    hurt, helped = (model.named(verdict)["change"].to_dict() for verdict in ("hurt", "helped"))
    shown, strict = len(hurt) + len(helped), (model.changes["p_holm"] <= 1 - CONFIDENCE).sum()
    these = f"{strict or 'none'} of the {shown:,} {'pass' if strict > 1 else 'passes'}"
    if strict == shown:
        these = {1: "it passes", 2: "both pass"}.get(shown, f"all {shown:,} pass")
    significant = f"significant at a false discovery rate of 5 %; {these} Holm's stricter correction"
    verdict = f"It hurt {changes(hurt)} and helped {changes(helped)}, {significant}."
    change = model.changes["change"]
    gain, pay = change[change > 0], change[change < 0]
    return [
        f"{model.title} (in brackets the change in points): average {now['average']}, worst 10 % {now['worst']}, "
        f"std {now['std']}.",
        verdict if shown else "No class is shown to be hurt or helped (at a false discovery rate of 5 %).",
        f"Significant or not, {len(gain):,} of {len(change):,} classes rose, which moves the average by "
        f"{points(gain.sum() / len(change))}, and {len(pay):,} fell: {points(pay.sum() / len(change))}.",
    ]


def _most_confused(result: Diagnosis) -> list[str]:
    """The pair that any model confuses most, and how often each does."""
    if result.pairs.empty:
        return []
    (label, prediction), row = next(result.pairs.iterrows())
    shares = row.xs("share", level=1).sort_values(ascending=False, kind="stable")
    where, found = "", f"{share(shares.iloc[0])} of its images"
    if shares.nunique() > 1:
        where = f" in {shares.index[0]}"
        found += "".join(f"; {title}: {share(value)}" for title, value in shares.iloc[1:].items())
    elif len(shares) > 1:
        found += ", in both" if len(shares) == 2 else ", in all"
    return [f"Confused most{where}: {label} taken for {prediction}, {found}."]


def as_json(result: Diagnosis, advice: Sequence[str]) -> dict[str, Any]:
    """Everything that the page shows, as plain values; nan is null. hurt, helped: null for the first model."""
    models = {
        model.title: {
            "images": model.images,
            "fairness": _plain(model.fairness),
            "profile": {f"{limit:g}": part for limit, part in model.profile["accuracy"].items()},
            "classes": _plain(model.table),
            **{verb: None if model.paired is None else list(model.named(verb).index) for verb in ("hurt", "helped")},
        }
        for model in result.models
    }
    return {"models": models, "sentences": sentences(result), "notes": list(result.notes), "advice": list(advice)}


def _plain(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return frame.astype(object).where(frame.notna(), None).to_dict("index")
