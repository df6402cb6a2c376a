"""A model of one's own in the browser: `diagnose_explorer()`. Its page is that of `clamkit diagnose`.

Names in a file may be anything: whatever is shown of them is escaped, and the page stands in a frame that runs nothing.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Javascript, display

from clamkit.apps import diagnose_page, fix
from clamkit.apps.advice import QUICK, advice
from clamkit.apps.diagnose import Diagnosis, diagnose
from clamkit.apps.predictions import Predictions, read, title_of
from clamkit.apps.words import percent, points
from clamkit.data.datasets import load_data
from clamkit.engine.store import RunStore
from clamkit.errors import ClamkitError
from clamkit.plots import style
from helpers.downloads import link

TYPES = (".csv", ".csv.gz", ".parquet", ".npz")
MOST_BYTES = 9_000_000  # of an upload: Jupyter's servers drop the connection at a message of 10 MiB
MOST_UNPACKED = 300_000_000  # bytes that a packed upload may become
EXAMPLE = "example"  # in place of a run's folder
DEAREST = 0.05  # of average accuracy: the slider goes no further
TOO_LARGE = f"is larger than {MOST_BYTES / 1e6:.0f} MB, the most that this page takes: use `clamkit diagnose` for it."
GUARD = """
const limit = %d, types = %s, why = %s, shown = ".clamkit-said .widget-html-content";
function guard(event) {
  const file = event.target.files[0];
  if (file && file.size > limit) {
    event.stopImmediatePropagation();
    for (const element of document.querySelectorAll(shown)) element.textContent = file.name + " " + why;
  }
}
if (!window.clamkitGuard) {
  window.clamkitGuard = true;
  const click = HTMLInputElement.prototype.click;
  HTMLInputElement.prototype.click = function () {
    if (this.type === "file" && this.accept === types) this.addEventListener("change", guard, true);
    return click.call(this);
  };
}
"""  # a file that is too large must not be sent at all


def read_upload(name: str, content: bytes) -> Predictions:
    """What was uploaded, if its type and size allow it."""
    name = name.replace("\\", "/").rsplit("/", 1)[-1] or "upload"
    kind = next((kind for kind in TYPES[::-1] if name.lower().endswith(kind)), None)
    if kind is None:
        raise ClamkitError(f"{name} is no file that can be read here: give one of the types {', '.join(TYPES)}.")
    if len(content) > MOST_BYTES:
        raise ClamkitError(f"{name} {TOO_LARGE}")
    if _unpacked(kind, content, name) > MOST_UNPACKED:
        raise ClamkitError(f"{name} unpacks to more than {MOST_UNPACKED / 1e6:.0f} MB: use `clamkit diagnose` for it.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"upload{kind}")
        path.write_bytes(content)
        try:
            found = read(path)
        except ClamkitError as error:
            raise ClamkitError(str(error).replace(path.name, name)) from error
    return replace(found, title=name)


def _unpacked(kind: str, content: bytes, name: str) -> int:
    try:
        if kind == ".npz":
            return sum(member.file_size for member in zipfile.ZipFile(io.BytesIO(content)).infolist())
        if kind == ".csv.gz":
            with gzip.open(io.BytesIO(content)) as file:
                return len(file.read(MOST_UNPACKED + 1))
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise ClamkitError(f"{name} is damaged, or not what its name says ({error}).") from error
    return len(content)


@dataclass
class Findings:
    """What the page shows of a model: the diagnosis, advice, and biases or why there are none."""

    model: Predictions
    result: Diagnosis
    advice: list[str]
    fixed: fix.Fix | None
    why_not: str

    @cached_property
    def page(self) -> str:
        return diagnose_page.html(self.result, advice=self.advice)

    def front(self) -> list[int]:
        """The rows of the path of biases that cost at most DEAREST."""
        average = self.fixed.biases.path["average"].to_numpy() if self.fixed else np.zeros(1)
        dear = np.flatnonzero(average[0] - average > DEAREST)
        return list(range(int(dear[0]) if dear.size else len(average)))

    def at(self, row: int) -> fix.Fix:
        """The biases of a row of the front."""
        assert self.fixed
        return replace(self.fixed, biases=self.fixed.biases.at(self.fixed.biases.path.index[row]), max_cost=None)

    def numbers(self, row: int) -> str:
        """What these biases do, as HTML."""
        table = self.at(row).biases.comparison[["average", "worst", "std", "range"]]
        cells = "".join(
            f"<tr><td>{escape(style.TITLES[name])}</td><td>{percent(a)}</td><td>{percent(b)}</td>"
            f"<td><b>{points(b - a)}</b></td></tr>"
            for name, (a, b) in table.items()
        )
        head = "<tr><th></th><th>without</th><th>with biases</th><th>points</th></tr>"
        return f'<table style="border-spacing:14px 2px">{head}{cells}</table>on images that took no part in the fit'

    def classes(self, row: int | None = None) -> pd.DataFrame:
        """The table of the classes, with their biases where there are any."""
        table = self.result.models[-1].table
        if row is None or self.fixed is None:
            return table
        biases = pd.Series(self.at(row).biases.values, self.model.names, name="bias")
        return table.join(biases, how="left")


def example() -> Predictions:
    """A linear discriminant of the embedded images with a long tail: common classes are preferred to rare ones.

    Scores x·A·m − m·A·m/2 + log share, m the mean image of a class and A the inverse of the covariance within classes,
    to which a tenth of its mean variance is added.
    """
    data = load_data("fashion_mnist_tail")
    train, test = (x.numpy().reshape(len(x), -1) / 255 for x in (data.x_train, data.x_test))
    y, shares = data.y_train.numpy(), data.sizes / data.sizes.sum()
    means = np.stack([train[y == label].mean(axis=0) for label in range(data.num_classes)])
    within = np.cov((train - means[y]).T)
    solved = np.linalg.solve(within + 0.1 * np.diag(within).mean() * np.eye(len(within)), means.T)
    scores = test @ solved - (means.T * solved).sum(axis=0) / 2 + np.log(shares)
    names = np.array(data.class_names, dtype=object)
    table = pd.DataFrame({"label": names[data.y_test.numpy()], "prediction": names[scores.argmax(axis=1)]})
    return Predictions("linear model of a long tail (an example)", table, scores, tuple(names))


def find_out(model: Predictions, against: Predictions | None = None) -> Findings:
    result = diagnose(*([model] if against is None else [against, model]))
    fixed, why_not = None, ""
    if model.scores is not None and model.scores.size > QUICK:
        why_not = f"{model.scores.size:,} scores are too many to fit biases here: use `clamkit fix`."
    else:
        try:
            fixed = fix.fix(model)
        except ClamkitError as error:
            why_not = str(error)
    return Findings(model, result, advice(result, model, fixed), fixed, why_not)


def diagnose_explorer(root: str | os.PathLike | None = None) -> widgets.Widget:
    """Choose a file or a finished run, see its page, move along the front of biases, download them.

    root: the runs folder, default `paths.runs()`.
    """
    runs = _titles(RunStore(root))
    wide = widgets.Layout(width="430px")
    uploads, lists = {}, {}
    for side, text in (("model", "a finished run …"), ("against", "nothing, or a finished run …")):
        uploads[side] = widgets.FileUpload(accept=",".join((*TYPES, ".gz")), description=f"{side}: a file")
        options = [(text, ""), *runs, ("an example: a linear model of a long tail", EXAMPLE)]
        lists[side] = widgets.Dropdown(options=options, description=f"or {side}", layout=wide)
    chosen: dict[str, Predictions | None] = dict.fromkeys(uploads)
    said, numbers, told, links, page = (widgets.HTML() for _ in range(5))
    said.add_class("clamkit-said")
    cost = widgets.IntSlider(0, 0, 0, description="cost", readout=False, layout=wide)
    front = widgets.Image(format="png", layout=widgets.Layout(max_width="min(100%, 720px)"))
    biases = widgets.VBox([widgets.HBox([cost, links]), widgets.HBox([front, numbers]), told])
    found: Findings | None = None

    def move(change: object = None) -> None:
        """The slider stands at another stop of the front."""
        if found is None:
            return
        row = None
        if found.fixed:
            row = found.front()[min(cost.value, len(found.front()) - 1)]
            at = found.at(row)
            figure = fix.figure_front(at)
            front.value, numbers.value = style.png(figure, 100), found.numbers(row)
            plt.close(figure)
        files = {"classes.csv": found.classes(row).to_csv().encode(), "diagnosis.html": found.page.encode()}
        if found.fixed and row:
            files["biases.json"] = at.biases.to_json().encode()
        links.value = " · ".join(link(content, name, f"save {name}") for name, content in files.items())

    def show() -> None:
        nonlocal found
        found = None
        for part in (numbers, told, links, page):
            part.value = ""
        front.value, biases.layout.display = b"", "none"
        if chosen["model"] is None:
            said.value = "Choose a file or a finished run." if chosen["against"] is None else "Now choose a model."
            return
        said.value = f"{escape(chosen['model'].title)} …"
        try:
            found = find_out(chosen["model"], chosen["against"])
        except ClamkitError as error:
            said.value = _bad(error)
            return
        said.value = f"<b>{escape(' against '.join(found.result.titles[::-1]))}</b>"
        page.value = (
            f'<iframe sandbox title="diagnosis" srcdoc="{escape(found.page)}" '
            'style="width:100%;height:900px;border:1px solid #ddd"></iframe>'
        )
        lines = fix.sentences(found.fixed)[1:] if found.fixed else [found.why_not]
        lines = [line for line in lines if not line.startswith("  ")]
        lines[0] = (
            f"Where the slider begins, which is what `clamkit fix` takes. {lines[0]}" if found.fixed else lines[0]
        )
        told.value = "".join(f"<div>{escape(line)}</div>" for line in lines)
        biases.layout.display = "flex"
        cost.disabled = found.fixed is None
        cost.max = max(1, len(found.front()) - 1)
        strengths = found.fixed.biases.path.index if found.fixed else [0.0]
        cost.value = list(strengths).index(found.fixed.biases.strength) if found.fixed else 0
        move()

    def take(side: str, get) -> None:
        """A file or run was chosen, or unchosen."""
        try:
            chosen[side] = get()
        except ClamkitError as error:
            chosen[side] = None
            show()
            said.value = _bad(error)
            return
        show()

    def uploaded(side: str, change: dict) -> None:
        if change["new"]:
            file = change["new"][0]
            lists[side].value = ""
            take(side, lambda: read_upload(file["name"], bytes(file["content"])))

    def listed(side: str, place: str) -> None:
        if place:
            uploads[side].value = ()
        take(side, lambda: _listed(place))

    for side in uploads:
        uploads[side].observe(lambda change, side=side: uploaded(side, change), "value")
        lists[side].observe(lambda change, side=side: listed(side, change["new"]), "value")
    cost.observe(move, "value")
    show()
    display(Javascript(GUARD % (MOST_BYTES, json.dumps(uploads["model"].accept), json.dumps(TOO_LARGE))))
    rows = [widgets.HBox([uploads[side], lists[side]]) for side in uploads]
    limits = f"<i>{', '.join(TYPES)}, at most {MOST_BYTES / 1e6:.0f} MB; read by this page's server, and not kept.</i>"
    return widgets.VBox([*rows, widgets.HTML(limits), said, biases, page])


def _listed(place: str) -> Predictions | None:
    return None if not place else example() if place == EXAMPLE else read(place)


def _titles(store: RunStore) -> list[tuple[str, str]]:
    """A title for each finished run, and its folder; two of one title also show what their folders are called."""
    found = []
    for run in store.runs():
        with suppress(ClamkitError):  # of another layout
            found.append((title_of(run.config), run.folder))
    titles = [title for title, _ in found]
    return [(f"{t} ({place.name})" if titles.count(t) > 1 else t, str(place)) for t, place in found]


def _bad(error: Exception) -> str:
    return f'<span style="color:#b00020">{escape(str(error))}</span>'
