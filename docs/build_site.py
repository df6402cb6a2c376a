"""Build the site into build/site: python docs/build_site.py (or `make docs`, which installs what it needs first).

The pages, notebooks and figures are copied to build/site-source with their places kept, so that a link works on the
site and in the repository alike. Pages of the methods and of the library are made there from the code and from
data/results. Notebooks are shown as they are committed and not executed. Whatever is wrong ends the build with a
sentence that names the page.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import warnings
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import api_pages  # noqa: E402
import method_pages  # noqa: E402
import site_checks  # noqa: E402

PACKAGES = Path(sys.prefix) / "docs"  # where `make docs` installs requirements-docs.lock
MATHJAX = ("tex-chtml.js", "output/chtml/fonts/woff-v2")  # all that a page of ours loads of it
COPIED = ("docs", "notebooks", "figures", "clamkit/README.md", "data/README.md", "data/results/bench.json")
COPIED += ("CONTRIBUTING.md", "CHANGELOG.md", "README.md")
SUFFIXES = {".md", ".ipynb", ".png", ".html", ".js", ".css", ".svg", ".json"}
FIRST = "docs/start.html"
REDIRECT = f"""<!doctype html>
<meta charset="utf-8"><title>clamkit</title><meta http-equiv="refresh" content="0; url={FIRST}">
<a href="{FIRST}">clamkit</a>
"""


class Refused(Exception):
    """The site cannot be built as it is; the message says why."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="default: build/site")
    parser.add_argument("--fresh", action="store_true", help="build every page anew, also those that have not changed")
    options = parser.parse_args(arguments)
    try:
        build(options.out.resolve(), fresh=options.fresh)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    print(f"the site is in {options.out}: open {options.out / 'index.html'}")
    return 0


def build(out: Path, *, fresh: bool = False) -> None:
    """Check the sources, make the pages, build, check the result."""
    use_packages()
    source = out.with_name(out.name + "-source")
    if fresh:
        for folder in (out, source, out.with_name(out.name + "-trees")):
            shutil.rmtree(folder, ignore_errors=True)
    pages = generated()
    refuse(faults_of_sources(ROOT, [ROOT / name for name in pages]), "the site is not built")
    stage(source, pages)
    run_sphinx(source, out)
    add_mathjax(out)
    if (ROOT / "docs" / "game").is_dir():  # a page of its own, which docs/game.md shows
        shutil.copytree(ROOT / "docs" / "game", out / "docs" / "game", dirs_exist_ok=True)
    (out / "index.html").write_text(REDIRECT, encoding="utf-8")
    refuse(site_checks.faults_of_site(out), "the site is built but not right")


def use_packages() -> None:
    """Make what `make docs` installed importable, before what is installed elsewhere."""
    if PACKAGES.is_dir():
        sys.path.insert(0, str(PACKAGES))
    try:
        import jupyter_book  # noqa: F401
    except ImportError as error:
        raise Refused(
            f"the site's packages are missing ({error}): call `make docs`, or\n"
            f"{sys.executable} -m pip install --no-deps --target {PACKAGES} -r requirements-docs.lock"
        ) from None


@cache
def generated() -> dict[str, str]:
    """The pages that are made from code and results, by their place."""
    return method_pages.pages(ROOT) | api_pages.pages()


def faults_of_sources(root: Path, made: list[Path]) -> list[str]:
    """Unexecuted notebooks and broken links in what the site shows."""
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    others = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages = [*sorted((root / "docs").glob("*.md")), *notebooks, *(page for page in others if page.is_file())]
    return [fault for path in notebooks for fault in site_checks.unexecuted(path)] + [
        fault for path in pages for fault in site_checks.broken_links(path, made)
    ]


def refuse(faults: list[str], what: str) -> None:
    if faults:
        shown = "\n".join(f"  {fault}" for fault in faults[:40])
        raise Refused(f"{what}: {len(faults)} fault{'s' * (len(faults) > 1)}\n{shown}")


def stage(source: Path, pages: dict[str, str]) -> None:
    """Copy what has changed to the source folder, and take away what is gone."""
    files = {}
    for name in COPIED:
        place = ROOT / name
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        files |= {
            path.relative_to(ROOT).as_posix(): path for path in found if path.is_file() and path.suffix in SUFFIXES
        }
    content = {
        name.replace("docs/_static/", "_static/"): path.read_bytes()
        for name, path in files.items()
        if ".ipynb_checkpoints" not in name
    }
    content |= {name: text.encode() for name, text in pages.items()}
    content["_toc.yml"] = table_of_contents(pages).encode()
    content["_config.yml"] = (ROOT / "docs" / "_config.yml").read_bytes()
    for old in sorted(source.rglob("*")):
        if old.is_file() and old.relative_to(source).as_posix() not in content:
            old.unlink()
    for name, data in content.items():
        target = source / name
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def table_of_contents(pages: dict[str, str]) -> str:
    """docs/_toc.yml with the pages of the methods below theirs."""
    text = (ROOT / "docs" / "_toc.yml").read_text(encoding="utf-8")
    methods = [name.removesuffix(".md") for name in pages if name.startswith("docs/methods/")]
    below = "".join(f"\n          - file: {name}" for name in methods)
    return text.replace("      - file: docs/methods\n", f"      - file: docs/methods\n        sections:{below}\n")


def run_sphinx(source: Path, out: Path) -> None:
    """Jupyter Book's own build; warnings are errors."""
    from jupyter_book.sphinx import build_sphinx

    warnings.filterwarnings("ignore", message="`torch.distributed.reduce_op`")
    result = build_sphinx(
        source,
        out,
        noconfig=True,
        path_config=source / "_config.yml",
        doctreedir=out.with_name(out.name + "-trees"),
        confoverrides={"latex_individualpages": False, "external_toc_path": str(source / "_toc.yml")},
        warningiserror=True,
        keep_going=True,
        quiet=True,
    )
    if result:
        raise Refused(f"the site is not built: see the warnings above, each with its page ({result})")


def add_mathjax(out: Path) -> None:
    """MathJax and its fonts beside the pages, so that formulas need no network."""
    found = PACKAGES / "sphinx-mathjax-offline" / "static" / "mathjax"
    for name in MATHJAX:
        target = out / "_static" / "mathjax" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (found / name).is_dir():
            shutil.copytree(found / name, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(found / name, target)


if __name__ == "__main__":
    sys.exit(main())
