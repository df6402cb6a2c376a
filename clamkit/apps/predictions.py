"""What a model said of its test images, read from a table, from arrays or from a run's folder.

table       CSV (commas, semicolons, tabs; also compressed) or Parquet: label and prediction, names or numbers, or
            scores: a column a class (logit_cat, prob_cat, just cat); Parquet also one of lists, logits. Optionally id.
arrays      .npz: labels, and predictions or logits or probabilities; optionally class_names and ids
run         the folder of a finished run, or a file in it
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from clamkit import paths
from clamkit.apps.words import some
from clamkit.engine.config import RunConfig
from clamkit.engine.store import LOGITS, RunFolder
from clamkit.errors import ClamkitError
from clamkit.files import read_arrays
from clamkit.methods.specs import METHODS

TINY = 1e-12  # added to probabilities before the log
CELLS = (2_000_000, 100)  # values a Parquet file may have, and how many more for each of its bytes: more is a trap
SUM_TOLERANCE = 0.02  # of the probabilities of an image: they may be rounded
ARRAYS = {  # and columns of tables: what we call it, and what others do
    "label": ("labels", "label", "y", "y_true", "target", "targets"),
    "prediction": ("predictions", "prediction", "pred", "preds", "y_pred"),
    "logits": ("logits", "logit"),
    "probabilities": ("probabilities", "probability", "probs", "prob", "proba", "y_prob"),
    "scores": ("scores", "y_score"),  # either: the values must tell
    "names": ("class_names", "classes", "names"),
    "id": ("ids", "id"),
}
SCORES = re.compile(r"(logits?|scores?|probs?|proba|probabilit(?:y|ies)|p)[\s_.:\[]+(.+?)\]?", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Predictions:
    """table: label, prediction and, where given, id of each image, as text; scores: what was said of every class.

    scores    [images, classes] logits, or the logs of probabilities (`kind` says which); names: of its columns
    held_out  scores and class numbers of images that were kept out of training, where a run has them
    """

    title: str
    table: pd.DataFrame
    scores: np.ndarray | None = None
    names: tuple[str, ...] = ()
    kind: str = "logits"
    held_out: tuple[np.ndarray, np.ndarray] | None = None
    method: str = ""  # of a run: its test images are not for fitting
    differs: int = 0  # predictions that are not the class of the largest score

    @property
    def labels(self) -> np.ndarray:
        """The columns of scores that the labels name."""
        return pd.Index(self.names).get_indexer(self.table["label"])


Source = Path | str | pd.DataFrame | Predictions


def read(source: Source) -> Predictions:
    """Anything that is no such file is told in a sentence."""
    if isinstance(source, Predictions):
        return source
    if isinstance(source, pd.DataFrame):
        return _from_table(source, "the table")
    path = Path(source)
    if path.is_file() and (path.parent / "DONE").is_file() and path.name in (LOGITS, "predictions.parquet"):
        path = path.parent
    if path.is_dir():
        return _from_run(path)
    if not path.is_file():
        raise ClamkitError(
            f"there is no file {paths.shown(path)}: give a CSV, Parquet or npz file of predictions, or a run's folder."
        )
    try:
        if path.suffix == ".npz":
            return _from_arrays(read_arrays(path), path.name)
        return _from_table(_table(path), path.name)
    except ClamkitError:
        raise
    except pd.errors.EmptyDataError:
        raise ClamkitError(f"{path.name} is empty: it needs the columns label and prediction.") from None
    except Exception as error:
        raise ClamkitError(
            f"{path.name} cannot be read as a table ({str(error).strip()}): give CSV (UTF-8, a header), Parquet or npz."
        ) from error


# --------------------------------------------------------------------------------------------------------- sources


def _table(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        said = parquet.read_metadata(path)
        if (cells := said.num_rows * said.num_columns) > CELLS[0] + CELLS[1] * path.stat().st_size:
            raise ValueError(f"it says it has {cells:,} values, more than so small a file can be meant to have")
        return pd.read_parquet(path)
    columns, form = pd.read_csv(path, nrows=0).columns, {}
    if len(columns) == 1 and (sign := re.search("[;\t]", columns[0])):
        form = {"sep": sign[0], "decimal": "," if sign[0] == ";" else "."}
        columns = pd.read_csv(path, nrows=0, **form).columns
    words = {column: str for column in columns if not SCORES.fullmatch(column.strip())}
    return pd.read_csv(path, dtype=words, keep_default_na=False, **form)


def _from_table(frame: pd.DataFrame, name: str) -> Predictions:
    own, columns = ("label", "prediction", "id"), [str(column).strip() for column in frame]
    columns = [column.lower() if column.lower() in own else column for column in columns]
    frame = frame.set_axis(columns, axis=1).reset_index(drop=True)  # rows are known by their place
    for column in own:
        if columns.count(column) > 1:
            raise ClamkitError(f"{name} has more than one column {column} (capitals do not count): keep one.")
        words = "|".join((*ARRAYS[column], "pred.*" if column == "prediction" else column))
        guesses = [text for text in columns if re.fullmatch(words, text, re.IGNORECASE)]
        if column not in columns and len(guesses) == 1:
            frame = frame.rename(columns={guesses[0]: column})
    if frame.empty and "label" in frame:
        raise ClamkitError(f"{name} has a header and no rows: it needs one for each image.")
    kind, names, scores = _score_columns(frame)
    absent = [column for column in ("label", "prediction") if column not in frame and (column == "label" or not names)]
    if absent:
        has = "scores and " if names else ""
        raise ClamkitError(
            f"{name} has {has}no column {' and no column '.join(absent)}: it needs label and prediction (or a column "
            f"of scores for each class, such as logit_cat), and has {some(list(frame), 8) or 'none'}."
        )
    found = Predictions(name, pd.DataFrame({c: _text(frame[c], name) for c in own if c in frame}))
    return found if scores is None else _with_scores(found, scores, names, kind)


def _score_columns(frame: pd.DataFrame) -> tuple[str, list[str], np.ndarray | None]:
    """(logits, probabilities or scores; the classes; their scores) of a table, if it has any."""
    for column in frame:
        kind = next((k for k in ("logits", "probabilities", "scores") if str(column).lower() in ARRAYS[k]), None)
        if kind and frame[column].dtype == object and not isinstance(frame[column].iloc[0], str):
            scores = np.stack(list(frame[column]))
            return kind, [str(i) for i in range(scores.shape[1])], scores
    found = {column: match for column in frame if (match := SCORES.fullmatch(column)) and column != "prediction"}
    first = min((match[1][0].lower() for match in found.values()), default="")  # of logit, score or prob
    kind = {"l": "logits", "s": "scores"}.get(first, "probabilities")
    names, labels = [match[2] for match in found.values()], set()
    if not found and "label" in frame and "prediction" not in frame:  # a column for each class, by its name
        labels = set(_text(frame["label"], "label"))
        names = [c for c in frame if c in labels or not re.fullmatch(r"label|id|index|Unnamed: \d+", c)]
        kind, found = "scores", names
    if not names or not labels <= set(names):
        return "", [], None
    return kind, names, frame[list(found)].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)


def _from_arrays(arrays: Mapping[str, np.ndarray], name: str) -> Predictions:
    by_name = {key.lower(): value for key, value in arrays.items()}
    found = {ours: by_name[key] for ours, keys in ARRAYS.items() for key in keys[::-1] if key in by_name}
    kind = next((kind for kind in ("logits", "probabilities", "scores") if kind in found), None)
    if "label" not in found or not (kind or "prediction" in found):
        lacks = "labels" if "label" not in found else "predictions, logits or probabilities"
        raise ClamkitError(
            f"{name} has no array {lacks}: it needs labels [images] and predictions [images], or logits or "
            f"probabilities [images, classes], and has {some(list(arrays), 8) or 'none'}."
        )
    sizes = {ours: found[ours].shape[:1] for ours in ("label", "prediction", kind, "id") if ours in found}
    if len(set(sizes.values())) > 1 or found["label"].ndim != 1:
        shapes = ", ".join(f"{ours} {found[ours].shape}" for ours in sizes)
        raise ClamkitError(f"the arrays of {name} do not belong together ({shapes}): give a row and a label an image.")
    if not len(found["label"]):
        raise ClamkitError(f"{name} has no images: its arrays have no rows.")
    names = list(_text(pd.Series(found["names"]), name, "class name")) if "names" in found else []
    table = pd.DataFrame({key: _text(pd.Series(found[key]), name, key) for key in sizes if key != kind})
    if kind is None:
        return Predictions(name, table.assign(**{c: _named(table[c], names) for c in ("label", "prediction")}))
    scores = found[kind]
    if scores.ndim != 2:
        raise ClamkitError(f"{kind} of {name} have shape {scores.shape}: give [images, classes].")
    return _with_scores(Predictions(name, table), scores, names or list(map(str, range(scores.shape[1]))), kind)


def _from_run(folder: Path) -> Predictions:
    run = RunFolder(folder)
    if not (folder / "config.json").is_file():
        raise ClamkitError(
            f"{paths.shown(folder)} is a folder, but not that of a run (no config.json): give the folder of one "
            "finished run, such as runs/fashion_mnist_mini/clam/crop-0.3/seed0-…; `clamkit status` lists them."
        )
    names = run.class_names
    table = run.predictions.apply(lambda column: pd.Series(np.array(names, dtype=object)[column]))
    found = Predictions(title_of(run.config), table, method=run.config.method)
    if not (folder / LOGITS).is_file():
        return found
    logits = run.logits
    held = (logits.holdout, logits.holdout_labels) if len(logits.holdout) else None
    return replace(_with_scores(found, logits.test, names, "logits"), held_out=held)


def title_of(config: RunConfig) -> str:
    data = Path(config.dataset).stem
    return f"{METHODS[config.method].label}, {data}, {config.augmentation} {config.strength:g}, seed {config.seed}"


# ---------------------------------------------------------------------------------------------------------- checks


def _with_scores(found: Predictions, scores: np.ndarray, names: Sequence[str], kind: str) -> Predictions:
    """Scores checked, probabilities as logs; predictions are the classes of the largest where none were given."""
    file, table = found.title, found.table
    names = list(_text(pd.Series(names, name="class name"), file))
    if len(set(names)) < len(names) or len(names) != scores.shape[1]:
        has = f"{scores.shape[1]} columns of {kind} and {len(set(names))} different class names"
        raise ClamkitError(f"{file} has {has}: give one name for each column.")
    table = table.assign(label=_named(table["label"], names))
    unknown = ~table["label"].isin(names)
    if unknown.any():
        raise ClamkitError(
            f"{unknown.sum():,} labels of {file} have no column of {kind} "
            f"({some(sorted(table.loc[unknown, 'label'].unique()))}): labels must be names of the columns "
            f"({some(names)}), or numbers from 0 to {len(names) - 1}."
        )
    finite = np.isfinite(scores) if np.issubdtype(scores.dtype, np.number) else np.zeros(scores.shape, dtype=bool)
    if not finite.all():
        row, at = np.unravel_index(finite.argmin(), finite.shape)
        raise ClamkitError(
            f"the {kind} of {file} are not all finite numbers (first: {scores[row, at]} in row {row + 1}, "
            f"class {names[at]}): leave such rows out, or give a class that was ruled out a score far below all others."
        )
    if kind != "logits":
        sums = scores.sum(axis=1, dtype=np.float64)
        proper = (scores >= 0).all(axis=1) & (np.abs(sums - 1) <= SUM_TOLERANCE)
        if not proper.all() and (kind == "probabilities" or (scores >= 0).all()):  # percentages, sigmoids, rounded
            row = proper.argmin()
            raise ClamkitError(
                f"the probabilities of {(~proper).sum():,} of {len(proper):,} images of {file} are negative or do not "
                f"sum to 1 (row {row + 1}: {sums[row]:.3g}): give the softmax of all classes, or, if these are logits, "
                "call them so (logits in an npz file, logit_<class> in a table)."
            )
        kind = "probabilities" if proper.all() else "logits"
    best = np.array(names, dtype=object)[scores.argmax(axis=1)]
    said = _named(table["prediction"], names) if "prediction" in table else best
    table, at = table.assign(prediction=said), pd.Index(names).get_indexer(said)
    differs = int(((at < 0) | (scores[np.arange(len(at)), at] < scores.max(axis=1))).sum())  # ties: float16 makes some
    if kind == "probabilities":
        scores = np.log(scores.astype(np.float32 if scores.dtype == np.float16 else scores.dtype) + TINY)
    return replace(found, table=table, scores=scores, names=tuple(names), kind=kind, differs=differs)


def _named(column: pd.Series, names: Sequence[str]) -> pd.Series:
    """Class numbers as names, where they are numbers and the names are not."""
    kinds = pd.Index(column.unique())
    if kinds.isin(names).all() or not all(re.fullmatch(r"\d+", kind) and int(kind) < len(names) for kind in kinds):
        return column
    return column.map({kind: names[int(kind)] for kind in kinds})


def _text(column: pd.Series, name: str, called: str | None = None) -> pd.Series:
    """Names without blanks around them, é always one character (NFC); whole numbers that were written as 3.0 are 3."""
    codes, kinds = pd.factorize(column, use_na_sentinel=False)
    text = pd.Series(kinds).astype(str).str.strip().str.normalize("NFC")
    bad = pd.Series(kinds).isna() | text.str.lower().isin(["", "nan"])
    if bad.any():
        rows = bad.to_numpy()[codes]
        raise ClamkitError(
            f"{name} has no {called or column.name} in {rows.sum()} of {len(rows)} rows (first: line "
            f"{rows.argmax() + 2}): fill them in or leave the rows out."  # the header is line 1
        )
    if text.str.fullmatch(r"-?\d+(\.0+)?").all():
        text = text.str.replace(r"\.0+$", "", regex=True)
    return pd.Series(text.to_numpy(object)[codes], column.index)
