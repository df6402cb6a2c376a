"""The command line. Errors are one paragraph and a non-zero exit; --debug shows the traceback.

What a command needs is imported inside it: `clamkit --help` and `clamkit status` load neither torch nor pandas.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import signal
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from clamkit import __version__, paths
from clamkit.apps.commands import diagnose_command, fix_command
from clamkit.apps.data import data_app, say
from clamkit.apps.words import counted
from clamkit.engine.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.lab import recipes

if TYPE_CHECKING:
    from clamkit.engine.store import RunFolder
    from clamkit.lab.grids import Grid

console = Console(highlight=False, soft_wrap=True)
app = typer.Typer(
    help="Class-dependent effects of data augmentation, and the CLAM method that reduces them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    epilog="Add --debug to any command to see the traceback of an error.",
)
app.add_typer(data_app, name="data")
app.command("diagnose")(diagnose_command)
app.command("fix")(fix_command)

LISTED_RUNS = 100  # that `status` lists one by one; more are counted
RecipeOption = Annotated[
    str | None, typer.Option(help=f"settings for a scale, by dataset: {' | '.join(recipes.RECIPES)}")
]
RunsOption = Annotated[Path | None, typer.Option("--runs", help="runs folder (default: runs/ in the project)")]


def main() -> None:
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        app()
    except Exception as error:
        if debug:
            raise
        expected, kind = isinstance(error, ClamkitError), type(error).__name__
        what = as_options(str(error)) if expected else f"unexpected {kind} (--debug shows where): {error}"
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"clamkit: {what}", style="red", markup=False)
        sys.exit(2 if expected else 1)


def as_options(message: str) -> str:
    """A message of the library in the words of the command line: `image_size=64` becomes `--image-size 64`."""
    fields = "|".join(sorted([*RunConfig.model_fields, "device"], key=len, reverse=True))

    def option(match: re.Match) -> str:
        name, value = match.groups()
        if value is None and "_" not in name:  # an ordinary word, such as "model"
            return match[0]
        return f"--{name.replace('_', '-')}" + ("" if value in (None, "=", "=True") else f" {value[1:]}")

    return re.sub(rf"(?<![\w./-])({fields})(=(?:'[^']*'|\([^)]*\)|[\w.+-]*[\w+-])?)?(?!\w)", option, message)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C ends the work with a sentence, and so do SIGTERM and SIGHUP: children ended, everything saved."""
    received = [signal.SIGINT]

    def stop(number: int, _) -> None:
        received.append(signal.Signals(number))
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise KeyboardInterrupt

    kinds = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {kind: signal.signal(kind, stop) for kind in kinds if signal.getsignal(kind) is not signal.SIG_IGN}
    try:
        yield
    except KeyboardInterrupt:
        console.print("stopped; everything is saved. The same command resumes.")
        sys.exit(128 + received[-1])
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"clamkit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show it and exit")
    ] = False,
) -> None:
    pass


def _choices(annotation: Any) -> list[str]:
    """The values of a Literal, also inside `Literal[…] | None` and `bool | Literal[…]`."""
    kinds = (annotation, *typing.get_args(annotation))
    found = [value for kind in kinds if typing.get_origin(kind) is typing.Literal for value in typing.get_args(kind)]
    return [*found, "true", "false"] if found and bool in kinds else found


def _train_command() -> typing.Callable:
    """`train` takes every field of RunConfig as an option, so that the two cannot drift apart."""

    def parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    parameters = []
    for name, field in RunConfig.model_fields.items():
        choices = _choices(field.annotation)
        kind = str | None if choices or str in typing.get_args(field.annotation) else field.annotation
        allowed = f" ({' | '.join(choices)})" if choices else ""
        annotation = Annotated[kind, typer.Option(help=(field.description or "") + allowed)]  # type: ignore[valid-type]
        parameters.append(parameter(name, field.default, annotation))
    device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps")]
    logs = Annotated[Path | None, typer.Option(help="folder for TensorBoard curves of each class, one below it a run")]
    parameters += [parameter("runs", None, RunsOption), parameter("device", "auto", device)]
    parameters += [parameter("log_dir", None, logs), parameter("recipe", None, RecipeOption)]
    parameters += [parameter("context", inspect.Parameter.empty, typer.Context)]

    def command(context: typer.Context, **options: Any) -> None:
        """Train one run, or go on with it where it stopped.

        Example: clamkit train --method clam --crop-lower-bound 0.3 --epochs 6 --seed 5
        Example: clamkit train --recipe fast --dataset cifar10
        """
        runs, device, recipe, log_dir = (options.pop(name) for name in ("runs", "device", "recipe", "log_dir"))
        sources = {name: context.get_parameter_source(name) for name in options}
        typed = {name: options[name] for name, source in sources.items() if source and source.name != "DEFAULT"}
        if recipe:  # what was typed goes before what it says
            options = recipes.recipe(recipe, options["dataset"]) | typed
        config = RunConfig(**options)  # what is wrong is said before torch is loaded
        for name in typed.keys() & config.idle:
            where = f"--method {config.method} --augmentation {config.augmentation}"
            say(f"--{name.replace('_', '-')} has no effect with {where}")
        curves = None
        if log_dir:
            from clamkit.integrations.tensorboard import Curves

            curves = Curves(log_dir / config.folder())
        from clamkit.engine.loop import train

        with _stoppable():
            run = train(config, runs=runs, device=device, watch=curves)
        if os.environ.get("RANK", "0") == "0":  # of several processes, the first one speaks
            config, s = run.config, run.summary
            names = {"average": "average", "std": "std", "range": "range (max − min)", "worst": "worst 10 %"}
            numbers = ", ".join(f"{words} {s[metric]:.1%}" for metric, words in names.items())
            say(f"{config.method} on {config.dataset}: {numbers}\n{paths.shown(run.folder)}\n{_what_next(run, runs)}")
            if curves:
                curves.of_run(run)  # what was trained before
                say(f"curves of each class: tensorboard --logdir {paths.shown(log_dir)}")

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _what_next(run: RunFolder, runs: Path | None) -> str:
    """The command that looks at a finished run, against normal training of the same setting where that is finished."""
    from clamkit.engine.store import RunStore

    normal = RunStore(runs).run(run.config.model_copy(update={"method": "normal"}))
    against = ["--against", paths.shown(normal.folder)] if normal.done and normal.folder != run.folder else []
    return f"next: {shlex.join(['clamkit', 'diagnose', paths.shown(run.folder), *against])}"


app.command("train")(_train_command())


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
    recipe: RecipeOption = None,
    select: Annotated[str | None, typer.Option(help="then choose fields (tau,u_min; all) by held-out images")] = None,
    by: Annotated[str, typer.Option(help="what to choose by: average-std, worst-tail or average")] = "average-std",
) -> None:
    """Run what is missing of a grid, several notebooks side by side, or on a Dask cluster.

    Example: clamkit sweep demo --jobs 2; clamkit sweep my_taus.yaml --select tau --by worst-tail
    """
    wanted, fields = _grid(grid, recipe), ()
    if select:
        from clamkit.lab import selection

        fields = () if select == "all" else tuple(select.replace("-", "_").split(","))
        selection.choices(wanted.configs(), fields, by)  # or what is wrong would be said after the training
    if dry_run:
        _show_plan(wanted, runs, jobs, rerun)
    else:
        finished = _sweep(wanted, runs, jobs, rerun=rerun, scheduler=scheduler, data_dir=data_dir)
        others = "; the others are committed (--rerun makes them)" * (len(finished) < (count := len(wanted.configs())))
        say(f"{len(finished)} of {count} runs of {grid} are done here{others}")
        if select:
            from clamkit.engine.store import RunStore
            from clamkit.lab.results import runs_of

            candidates = runs_of(grid, wanted.configs(), RunStore(runs))
            say(str(selection.select(candidates, fields, by=by, wanted=wanted.configs())))


def _grid(name: str, recipe: str | None = None) -> Grid:
    from clamkit.lab.grids import Grid

    return Grid.load(name).with_recipe(recipe) if recipe else Grid.load(name)


def _show_plan(grid: Grid, runs: Path | None, jobs: int | None, rerun: bool) -> None:
    from clamkit.lab.costs import costs, duration
    from clamkit.lab.execution import workers
    from clamkit.lab.runner import lines_of, notebooks_for, plan

    notebooks_for(grid)  # before the plan of runs that nothing could make
    frame = plan(grid, runs)
    missing = frame[~frame["state"].isin(["done"] if rerun else ["done", "committed"])]
    lines = lines_of(configs := grid.configs() if len(missing) else [])
    for row in missing.itertuples():
        guess = f"about {row.seconds:.0f} s" if row.seconds == row.seconds else "time unknown"
        say(f"{lines[configs[row.Index].folder().as_posix()]}  {row.state}  {guess}")
    jobs, _ = workers(jobs, len(missing))
    left = missing["seconds"].sum(min_count=len(missing)) / jobs
    known = f"about {duration(left)} if they take as long as those that are done"
    time_left = known if left == left else "time unknown until a run like these has finished"
    to_do = f"{len(missing)} to do with {jobs} side by side: {time_left if len(missing) else 'nothing left'}"
    say(f"{counted(len(frame), 'run')}, {len(frame) - len(missing)} done, {to_do}")
    if len(missing):
        say(costs(configs[place] for place in missing.index))


def _sweep(grid: Grid, runs: Path | None, jobs: int | None, **options: Any) -> list[RunFolder]:
    from clamkit.lab.runner import sweep

    with _stoppable():
        finished, failed = sweep(grid, runs=runs, jobs=jobs, **options)
    if failed:
        folder, why = next(iter(failed.items()))
        raise ClamkitError(
            f"{len(failed)} of {len(failed) + len(finished)} runs failed, {len(finished)} finished. "
            f"The first, {folder}: {why} The same command tries the failed ones again."
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
    finished = _sweep(_grid("demo"), runs, jobs)
    from clamkit.apps import demo
    from clamkit.lab.tables import all_epochs

    saved = demo.save_figures(finished)
    console.print(demo.comparison_table(finished))
    say(f"one seed a cell; crop 1 is no crop. figures: {', '.join(map(paths.shown, saved))}")
    say(f"runs, each with its executed notebook: {paths.shown(runs or paths.runs())}")
    if history:
        all_epochs(finished).to_csv(history, index=False)


@app.command("results")
def results_command(
    grid: Annotated[str, typer.Argument(help="a grid of notebooks/sweeps, or a YAML file")], runs: RunsOption = None
) -> None:
    """Write the finished runs of a grid to data/results, to be committed.

    Example: clamkit results mini_crop
    """
    from clamkit.engine.store import RunStore
    from clamkit.lab import results

    loaded, store = _grid(grid), RunStore(runs)
    wanted = {config.folder().as_posix(): store.run(config) for config in loaded.configs()}
    before = len(results.rows_of(loaded.name))
    rows = results.save(loaded.name, [run for run in wanted.values() if run.done])
    if rows.empty:
        why = f"no run of {loaded.name} is finished in {paths.shown(store.root)}: `clamkit sweep {grid}` makes them."
        raise ClamkitError(why)
    held, files = int(rows["run"].isin(wanted).sum()), f"{paths.shown(results.folder() / loaded.name)}.csv and .parquet"
    what = f"{held} of {len(wanted)} runs of {loaded.name}" + f", and {len(rows) - held} not in it" * (held < len(rows))
    say(f"{counted(len(rows) - before, 'run')} added; {files} hold {what}")


@app.command("status")
def status_command(
    runs: RunsOption = None,
    grid: Annotated[str | None, typer.Option(help="show a grid, also what is not yet begun")] = None,
) -> None:
    """What is done, running, failed, stopped or missing; more than 100 runs are counted, not listed.

    Example: clamkit status --grid demo
    """
    from clamkit.apps import status
    from clamkit.engine.store import RunStore

    store = RunStore(runs)
    found = [] if grid else store.runs(finished=False)
    if grid:
        from clamkit.lab.runner import plan

        frame, title = plan(_grid(grid), runs), grid
        frame["dataset"] = frame["dataset"].map(lambda name: Path(name).stem)
    elif not found:
        say(f"no runs in {paths.shown(store.root)} yet: `make demo` or `clamkit train` makes some.")
        return
    elif len(found) <= LISTED_RUNS:
        console.print(*status.list_runs(found, store.root), sep="\n")
        return
    else:
        frame, title = status.states_of(found), paths.shown(store.root)
    console.print(*status.count_runs(frame, title), sep="\n")
    say(", ".join(f"{count} {state}" for state, count in frame["state"].value_counts().items()))


@app.command("report")
def report_command(
    notebooks: Annotated[list[str] | None, typer.Argument(help="analysis notebooks by name; default all")] = None,
    runs: RunsOption = None,
    out: Annotated[Path | None, typer.Option(help="folder of the figures (default: build/figures/)")] = None,
    html: Annotated[Path | None, typer.Option(help="the page to write (default: report.html beside them)")] = None,
    code: Annotated[bool, typer.Option("--code", help="show the notebooks' code too")] = False,
    predictions: Annotated[
        Path | None, typer.Option(help="diagnose any model instead: a CSV file with columns label and prediction")
    ] = None,
    augmented: Annotated[
        Path | None, typer.Option(help="with --predictions: the same, of the model trained with augmentation")
    ] = None,
) -> None:
    """Execute the analysis notebooks on finished runs: figures as PNG and PDF, and one page with all of them.

    With --predictions, a page on the classes of any model from anywhere.

    Examples: clamkit report 20_fairness_tables --runs runs · clamkit report --predictions preds.csv
    """
    if predictions:
        return diagnose_command([predictions, augmented] if augmented else [predictions], html=html)
    if augmented:
        raise ClamkitError("--augmented goes with --predictions: give the model without augmentation there.")
    from clamkit.lab import report

    page = report.write(report.analysis_notebooks(notebooks or ()), runs, out, page=html, code=code)
    say(f"{paths.shown(page)}, figures in {paths.shown(out or paths.figures())}")


@app.command("doctor")
def doctor_command() -> None:
    """What this machine has: device, versions, datasets at hand, folders, and what is missing.

    Example: clamkit doctor
    """
    from clamkit.apps.doctor import doctor

    lines, sound = doctor()
    for line in lines:
        say(line)
    if not sound:
        raise typer.Exit(1)
