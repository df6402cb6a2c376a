"""Class biases without training: one number a class, added to the logits of any finished model. No torch.

`fit_biases` is the free control that every method of the kit has to beat; `fit_drops` is DROPS (Wei et al., ICLR 2023).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import expit, logsumexp

from clamkit.checks import check_labels, class_sizes, fraction, non_negative, positive, positive_int
from clamkit.errors import ClamkitError, check_known
from clamkit.metrics.accuracy import HIGHER_IS_BETTER, METRICS, TAIL, fairness_of_rows, tail_size

Metrics = Mapping[str, np.ndarray]
OBJECTIVES: dict[str, Callable[[Metrics, float], np.ndarray]] = {  # of (metrics as in `fairness`, trade)
    "average": lambda of, trade: of["average"],
    "average-std": lambda of, trade: of["average"] - trade * of["std"],
    "worst-tail": lambda of, trade: of["worst"],
}
STEPS = 0.1 * 1.12 ** np.arange(21)  # of the path, in units: fine where little correction is enough
STRENGTHS = np.concatenate([[0.0], np.cumsum(STEPS[:-1])])  # 0 to 7.2; the best were 0.5 to 4 wherever we looked
NEAR = 0.10  # share of the images, those nearest to a change of prediction, by which the unit is measured
FIT_WIDTH = 0.2  # in units, of the soft step in which an image comes to count as right: for the fit
CHOICE_WIDTH = 0.05  # and for the choice of the strength
CAUTION = 0.25  # a gain counts from this share of its spread over the held-out parts on
AS_ASKED = "The strength was given, not chosen."
BLOCK = 2**18  # logits looked at at once: a megabyte, so that they stay in the cache
WORDS = ("objective", "strength", "choice", "measured")  # fields of biases that JSON keeps as they are
PATH = (*(name for name in METRICS if name != "cov"), "objective", "gain", "soft_gain", "spread")  # columns of a path


@dataclass(frozen=True, eq=False)
class Biases:
    """One bias a class, and what it does.

    values    (n,), to be added to the logits; their mean is 0, which changes no prediction
    path      one row for each strength (the index; 0: no biases): average, std, range, decile_range, worst (tail) and
              best as in `fairness`, the objective, its gain over no biases, and the gain in softly counted accuracies
              by which the strength is chosen, with its spread (std) over the held-out parts
    strength  the row of the path that was taken
    choice    why this one, in words; also that there is nothing to gain, where the biases are zero
    measured  where the numbers of the path come from
    along     (rows, n), the biases of every row; not kept in JSON

    >>> rng, labels = np.random.default_rng(0), np.arange(3000) % 3
    >>> logits = rng.normal(size=(3000, 3)) + 2 * np.eye(3)[labels] - [0, 0, 1]  # class 2 is held down
    >>> biases = Biases.from_json(fit_biases(logits, labels).to_json())
    >>> bool((biases.predict(logits) == biases.apply(logits).argmax(1)).all())
    True
    """

    values: np.ndarray
    objective: str
    path: pd.DataFrame
    strength: float
    choice: str
    measured: str
    class_names: tuple[str, ...] | None = None
    along: np.ndarray | None = None

    @property
    def cost(self) -> float:
        """Average class accuracy lost against no biases, a fraction; below 0: won."""
        return float(-self.comparison["average"].diff().iloc[1])

    @property
    def gain(self) -> float:
        """What the objective wins against no biases, a fraction."""
        return float(self.comparison["objective"].diff().iloc[1])

    @property
    def comparison(self) -> pd.DataFrame:
        """The metrics without and with the biases, one row each."""
        rows = self.path.loc[[0.0, self.strength]].drop(columns=["gain", "soft_gain", "spread"])
        return rows.set_axis(["without", "with"], axis=0)

    def at(self, strength: float) -> Biases:
        """The biases of another row of the path: the one nearest to a strength."""
        if self.along is None:
            raise ClamkitError("biases read from JSON are those of one strength: fit again to walk along the path.")
        row = int(np.abs(self.path.index.to_numpy() - strength).argmin())
        return replace(self, values=self.along[row], strength=float(self.path.index[row]), choice=AS_ASKED)

    def reaching(self, metric: str, value: float) -> Biases:
        """The weakest biases of the path under which a metric is as good as `value` (in the mean of the parts)."""
        check_known("metric", metric, [name for name in METRICS if name in self.path])
        sign = 1 if metric in HIGHER_IS_BETTER else -1
        found = (sign * self.path[metric] >= sign * value - 1e-12).to_numpy()
        if not found.any():
            row = int((sign * self.path[metric]).to_numpy().argmax())
            none, best = (self.path.iloc[i][[metric, "average"]].to_numpy() for i in (0, row))
            raise ClamkitError(f"no biases reach {metric}={value:g} on held-out images: without it is {none[0]:.1%}, "
                               f"at best {best[0]:.1%}, with an average of {best[1]:.1%} (without {none[1]:.1%}). "
                               "Ask for less, or train for it.")  # fmt: skip
        chosen = self.at(float(self.path.index[int(found.argmax())]))
        return replace(chosen, choice=f"The weakest biases that reach {metric}={value:g} on held-out images.")

    def apply(self, logits: ArrayLike) -> np.ndarray:
        """Logits [..., n] + biases, in the logits' own precision."""
        scores = self._scores(logits)
        given = np.asarray(logits).dtype
        return scores.astype(given, copy=False) if np.issubdtype(given, np.floating) else scores

    def predict(self, logits: ArrayLike) -> np.ndarray:
        """The class of the largest sum; the first one of equals."""
        return self._scores(logits).argmax(axis=-1)

    def _scores(self, logits: ArrayLike) -> np.ndarray:
        array = np.asarray(logits)
        if array.ndim < 1 or array.shape[-1] != len(self.values):
            raise ClamkitError(f"logits have shape {array.shape}: the last dimension must be {len(self.values)}, the "
                               "classes these biases are for.")  # fmt: skip
        kind = _precision(array)
        return array.astype(kind, copy=False) + self.values.astype(kind)

    def to_json(self) -> str:
        content = {name: getattr(self, name) for name in (*WORDS, "class_names", "cost", "gain")}
        content["values"] = self.values.tolist()
        content["path"] = {"strength": self.path.index.tolist()} | self.path.to_dict("list")
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Biases:
        try:
            content = json.loads(text)
            values, names = np.array(content["values"], dtype=np.float64), content["class_names"]
            path = pd.DataFrame(content["path"]).set_index("strength")[list(PATH)]
            kept = {name: content[name] for name in WORDS}
            path.loc[kept["strength"]]  # a KeyError where it is not on the path
            return cls(values, path=path, class_names=None if names is None else tuple(names), **kept)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClamkitError(f"this is no JSON of biases ({error!r}): give what Biases.to_json wrote.") from None

    def __repr__(self) -> str:
        if not self.values.any():
            return f"Biases for {len(self.values)} classes ({self.objective}): all zero. {self.choice} {self.measured}"
        names = self.class_names or tuple(f"class {i}" for i in range(len(self.values)))
        low, high = (f"{self.values[i]:+.2f} ({names[i]})" for i in (self.values.argmin(), self.values.argmax()))
        moves = (f"{name} {a:.1%} → {b:.1%}" for name, (a, b) in self.comparison[["average", "std", "worst"]].items())
        what = f"Biases for {len(self.values)} classes ({self.objective}), from {low} to {high}"
        return f"{what}: {', '.join(moves)}. {self.choice} {self.measured}"


def fit_biases(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    objective: str = "average-std",
    trade: float = 1.0,
    tail: float = TAIL,
    max_cost: float | None = None,
    strength: float | None = None,
    folds: int = 2,
    repeats: int = 5,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
) -> Biases:
    """One bias a class for what is asked, chosen on images that did not take part in the fit.

    The path. b starts at 0 and moves by b ← b + s·(mean(v) − v), v_c the accuracy of class c under b: CLAM's
    multiplicative step on the predictions. v is counted softly, σ(margin / width), the margin that of the label's logit
    over the best other one, which fits less noise.

    The choice. Each class is split at random into `folds` parts, `repeats` times; a path is fitted on all but one part
    and measured on it. Of the strengths that gain there and cost no more than `max_cost` the one with the best softly
    counted objective is taken, and fitted on all images; biases are zero if it gains less than noise.

    The numbers. Metrics are taken on each part and averaged, so std and tails of few images look worse than on all
    images, without and with biases alike. (Taken together, held-out images would look more equal than they are.)

    logits       [N, n], or log-probabilities (add 1e-12 before the log); float16 and float32 are not copied
    labels       [N], 0 to n − 1, every class at least `folds` times
    objective    "average-std": average − trade·std of the class accuracies; "worst-tail": mean of the worst tenth of
                 the classes (`tail`=1/n: the worst class); "average": for models that saw unbalanced data
    max_cost     how much average class accuracy may be lost on the held-out parts: 0.005 is half a point
    strength     take this one (the nearest on the path) and choose nothing

    >>> rng, labels = np.random.default_rng(0), np.arange(3000) % 3
    >>> logits = rng.normal(size=(3000, 3)) + 2 * np.eye(3)[labels] - [0, 0, 1]  # class 2 is held down
    >>> fit_biases(logits, labels).comparison["worst"].round(1).tolist()  # without and with biases
    [0.6, 0.8]
    """
    logits, labels, names = _checked(logits, labels, class_names)
    n = logits.shape[1]
    check_known("objective", objective, OBJECTIVES)
    non_negative(trade, "trade", "It is what a point of std costs in average.")
    fraction(max_cost or 0, "max_cost", "0.005 is half a point.")
    non_negative(strength or 0, "strength", "0 is no biases; leave it out to have it chosen.")
    tail_size(n, tail)  # refuses what is no share
    held = _held_out(labels, n, positive_int(folds, "folds"), positive_int(repeats, "repeats"), seed)

    biases, unit = np.zeros((len(held), n)), 0.0
    along, measured, soft = [], [], []
    for step in STEPS:
        margins = _margins(logits, labels, biases)
        unit = unit or _unit(margins[-1])
        along.append(biases[-1])
        measured.append(_class_means(margins[:-1] > 0, held[:-1], labels, n))
        soft.append(_class_means(expit(margins[:-1] / (CHOICE_WIDTH * unit)), held[:-1], labels, n))
        v = _class_means(expit(margins / (FIT_WIDTH * unit)), ~held, labels, n)
        biases = biases + step * unit * (v.mean(axis=1, keepdims=True) - v)

    metrics = fairness_of_rows(np.array(measured), tail)
    score, smooth = (OBJECTIVES[objective](of, trade) for of in (metrics, fairness_of_rows(np.array(soft), tail)))
    path = _path(metrics, score, smooth, STRENGTHS)
    if strength is None:
        row = _choose(path, max_cost)
        choice = "The best strength on held-out images."
        if row == 0:
            within = "" if max_cost is None else f" at a cost of at most {max_cost:.2%} of average"
            choice = f"Nothing to gain{within}: no strength improves {objective} by more than noise."
    else:
        row, choice = int(np.abs(STRENGTHS - strength).argmin()), AS_ASKED
    origin = f"Measured on held-out images, {repeats} times {folds} parts, fitted on the others."
    return Biases(along[row], objective, path, float(STRENGTHS[row]), choice, origin, names, np.array(along))


def fit_drops(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    prior: ArrayLike | None = None,
    delta: float = 0.2,
    iterations: int = 25,
    step: float = 0.1,
    decay: float = 1.0,
    tail: float = TAIL,
    class_names: Sequence[str] | None = None,
) -> Biases:
    """DROPS: the biases that do best against the worst class distribution g with KL(g‖r) ≤ δ, r uniform.

    Predict argmax α_y·p_y, so that the biases are log α; L_y is the error of class y under it. In turn
    g ∝ r·exp(L/λ), λ ← λ + η·(KL(g‖r) − δ) with the g before, α = g/prior, η ← η·decay; λ starts at 1.

    δ, η and decay are the defaults of the released code. The command in its README (delta=0.9, step=10, decay=0.95)
    is no good on balanced data: its first step takes λ below 0, where bad classes lose weight (`choice` says so).

    prior  class shares of the data the model was trained on; default equal. The path has a row for each iteration and
           is measured on the images of the fit: nothing is held out.

    >>> rng, labels = np.random.default_rng(0), np.arange(3000) % 3
    >>> logits = rng.normal(size=(3000, 3)) + 2 * np.eye(3)[labels] - [0, 0, 1]  # class 2 is held down
    >>> int(fit_drops(logits, labels).values.argmax())
    2
    """
    logits, labels, names = _checked(logits, labels, class_names)
    n, every = logits.shape[1], np.ones((1, len(labels)), dtype=bool)

    def accuracy(values: np.ndarray) -> np.ndarray:
        return _class_means(_margins(logits, labels, values[None]) > 0, every, labels, n)

    shares = class_sizes(np.ones(n) if prior is None else prior, n, "prior")
    log_prior, log_r = np.log(shares / shares.sum()), np.full(n, -np.log(n))
    log_g, lam, eta = log_r, 1.0, positive(step, "step")
    positive(delta, "delta"), positive(decay, "decay")
    along, measured = [np.zeros(n)], [accuracy(np.zeros(n))]
    right = accuracy(log_g - log_prior)
    for _ in range(positive_int(iterations, "iterations")):
        divergence = float((np.exp(log_g) * (log_g - log_r)).sum())
        log_g = log_r + (1 - right[0]) / lam
        log_g = log_g - logsumexp(log_g)
        lam, eta = lam + eta * (divergence - delta), eta * decay
        if lam == 0:
            raise ClamkitError(f"the multiplier of DROPS is exactly 0 with step={step} and delta={delta}: change one.")
        values = log_g - log_prior
        right = accuracy(values)
        along.append(values - values.mean())
        measured.append(right)
    metrics = fairness_of_rows(np.array(measured), tail)
    path = _path(metrics, metrics["worst"], metrics["worst"], np.arange(len(along), dtype=float))
    choice = f"The last of {iterations} iterations."
    if lam < 0:
        choice += f" λ ended at {lam:.1f}, below 0, where bad classes lose weight: take a smaller step."
    origin = "Measured on the images of the fit."
    return Biases(along[-1], "drops", path, float(iterations), choice, origin, names, np.array(along))


def _checked(
    logits: ArrayLike, labels: ArrayLike, class_names: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...] | None]:
    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.ndim != 2 or not np.issubdtype(logits.dtype, np.number) or np.iscomplexobj(logits):
        raise ClamkitError(f"logits have shape {logits.shape} and type {logits.dtype}: give numbers [images, classes].")
    images, n = logits.shape
    if n < 2:
        raise ClamkitError(f"logits have {n} column: biases need at least two classes. Of a binary output z give 0, z.")
    if labels.shape != (images,):
        raise ClamkitError(f"labels have shape {labels.shape}: give one label for each of the {images} images.")
    check_labels(labels, n)
    names = None if class_names is None else tuple(map(str, class_names))
    if names is not None and len(names) != n:
        raise ClamkitError(f"{len(names)} class names were given for {n} classes: give one for each column of logits.")
    missing = np.flatnonzero(np.bincount(labels, minlength=n) == 0)
    if missing.size:
        which = f"class {missing[0]}" if names is None else f"class {names[missing[0]]!r}"
        none = f"{which} has no image ({missing.size} of {n} classes have none)"
        raise ClamkitError(f"{none}, so it can have no bias: give images of it, or leave its column out.")
    if bad := images - np.isfinite(logits).all(axis=1).sum():
        raise ClamkitError(f"the logits of {bad} of {images} images have nan or infinite values: leave these images "
                           "out. If they are log-probabilities add 1e-12 before the log.")  # fmt: skip
    return logits, labels.astype(np.int64), names


def _held_out(labels: np.ndarray, n: int, folds: int, repeats: int, seed: int) -> np.ndarray:
    """Which images each fit leaves out [folds·repeats + 1, N]; the last fit has all. Each class is split evenly."""
    sizes = np.bincount(labels, minlength=n)
    if folds < 2 or sizes.min() < folds:
        raise ClamkitError(f"folds={folds} with {sizes.min()} images of class {sizes.argmin()}: every part needs one "
                           "of each class, so folds must be at least 2 and at most the images of a class.")  # fmt: skip
    parts = []
    for generator in np.random.default_rng(seed).spawn(repeats):
        shuffled = generator.permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        first = np.repeat(np.cumsum(sizes) - sizes, sizes)  # where the class of each begins
        rank = np.empty(len(labels), dtype=np.int64)
        rank[by_class] = np.arange(len(labels)) - first + by_class[first]  # not every class begins with the same part
        parts += [rank % folds == part for part in range(folds)]
    return np.array([*parts, np.zeros(len(labels), dtype=bool)])


def _precision(logits: np.ndarray) -> np.dtype[Any]:
    return np.dtype(np.float32 if logits.dtype in (np.float16, np.float32) else np.float64)


def _margins(logits: np.ndarray, labels: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """How far the label leads the best other class [fits, N], for biases [fits, n]; above 0: predicted.

    Where both are equal the first class is predicted, as argmax does: such a lead is the smallest number above 0.
    """
    kind = _precision(logits)
    found, biases = np.empty((len(biases), len(labels)), kind), biases.astype(kind)
    rows = max(1, BLOCK // logits.shape[1])
    for start in range(0, len(labels), rows):
        block, own = logits[start : start + rows].astype(kind, copy=False), labels[start : start + rows]
        scores, image = np.empty(block.shape, kind), np.arange(len(own))
        for fit, bias in enumerate(biases):
            np.add(block, bias, out=scores)
            of_label = scores[image, own]
            scores[image, own] = -np.inf
            rival = scores.argmax(axis=1)
            lead = of_label - scores[image, rival]
            lead[(lead == 0) & (own < rival)] = np.finfo(kind).tiny
            found[fit, start : start + rows] = lead
    return found


def _unit(margins: np.ndarray) -> float:
    """A bias that changes many predictions, whatever the scale of the logits: 1 over the density of |margin| at 0."""
    size = np.abs(margins.astype(np.float64))
    return float(np.quantile(size, NEAR) / NEAR or size.mean() or 1.0)


def _class_means(values: np.ndarray, use: np.ndarray, labels: np.ndarray, n: int) -> np.ndarray:
    """Mean of values [fits, N] over the images of each class that `use` [fits, N] takes: [fits, n]."""
    cells = (labels + n * np.arange(len(use))[:, None])[use]
    sums = np.bincount(cells, values[use], minlength=n * len(use))
    return (sums / np.bincount(cells, minlength=n * len(use))).reshape(len(use), n)


def _path(metrics: Metrics, score: np.ndarray, smooth: np.ndarray, strengths: np.ndarray) -> pd.DataFrame:
    """Means over the parts of metrics, objective and softly counted objective [rows, parts]."""
    columns = {**metrics, "objective": score, "gain": score - score[0], "soft_gain": smooth - smooth[0]}
    means = {name: values.mean(axis=1) for name, values in columns.items()}
    means["spread"] = columns["soft_gain"].std(axis=1)
    return pd.DataFrame(means, index=pd.Index(strengths, name="strength"))[list(PATH)]


def _choose(path: pd.DataFrame, max_cost: float | None) -> int:
    """The row with the best soft gain of those that gain and cost no more than allowed; 0 where that gain is noise."""
    cost = path["average"].iloc[0] - path["average"]
    allowed = (path["gain"] > 1e-12) & (cost <= (np.inf if max_cost is None else max_cost + 1e-12))
    row = int(path["soft_gain"].where(allowed, -np.inf).to_numpy().argmax())
    return row if path["soft_gain"].iloc[row] > CAUTION * path["spread"].iloc[row] else 0
