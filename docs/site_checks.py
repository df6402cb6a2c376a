"""What the site's build refuses: notebooks without outputs, links that lead nowhere, anything loaded from elsewhere.

Each check gives sentences, one for each fault, that name the page. No Sphinx here: the quick tests call them too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FENCE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$|`[^`\n]*`", re.M | re.S)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.M)
HOST = re.compile(r"^(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}$", re.I)
CSS_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}
NOT_LOADED = {
    "canonical",
    "next",
    "prev",
    "search",
    "index",
    "author",
    "help",
    "top",
}  # rel= of links that fetch nothing
RUN = "python notebooks/refresh.py"


# ------------------------------------------------------------------------------------------------------ notebooks


def unexecuted(path: Path) -> list[str]:
    """Code cells of a notebook that have not been run, in order, or that failed."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    counts = [cell.get("execution_count") for cell in cells if "".join(cell["source"]).strip()]
    if counts != list(range(1, len(counts) + 1)):
        return [f"{path.name} is not executed from top to bottom: {RUN} {path.stem}"]
    if any(output["output_type"] == "error" for cell in cells for output in cell["outputs"]):
        return [f"{path.name} ends a cell with an error: {RUN} {path.stem}"]
    return []


# ---------------------------------------------------------------------------------------------------------- links


def text_of(path: Path) -> str:
    """The Markdown of a page or a notebook."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def anchors(text: str) -> set[str]:
    """What can be linked to in a page: its headings as GitHub and the site write them."""
    plain = FENCE.sub(lambda found: "" if "\n" in found[0] else found[0], text)
    headings = (re.sub(r"\]\([^)]*\)|[`*_\[\]]", "", heading) for heading in HEADING.findall(plain))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path, made: Iterable[Path] = ()) -> list[str]:
    """Links of a page or a notebook that lead to no file or heading, or whose address has not the form of one.

    made: files that the build will make
    """
    text, wrong, made = text_of(path), [], set(made)
    for link in LINK.findall(FENCE.sub("", text)):
        if ":" in link.split("/")[0]:
            wrong += [f"{path.name}: {why}: {link}" for why in bad_address(link)]
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / unquote(name)).resolve() if name else path
        if target in made:
            continue
        if not target.exists():
            wrong.append(f"{path.name}: there is no file for the link {link}")
        elif anchor and target.suffix in (".md", ".ipynb") and unquote(anchor) not in anchors(text_of(target)):
            wrong.append(f"{path.name}: {target.name} has no heading for the link {link}")
    return wrong


def bad_address(link: str) -> list[str]:
    """Why an address outside of the project cannot be right, by its form alone."""
    parts = urlsplit(link)
    if parts.scheme == "mailto":
        return [] if re.fullmatch(r"[^@\s]+@[^@\s]+\.[a-z]+", parts.path) else ["no e-mail address"]
    if parts.scheme != "https":
        return ["not an https address"]
    if not HOST.match(parts.hostname or ""):
        return ["no name of a host in it"]
    return []


# ------------------------------------------------------------------------------------------------- the built pages


class Page(HTMLParser):
    """What a page loads, where it links to, and what can be linked to in it."""

    def __init__(self, text: str):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag in LOADED and LOADED[tag] in given and not set(given.get("rel", "").split()) & NOT_LOADED:
            self.loads.append(given[LOADED[tag]])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        self.loads += [url for style in [given.get("style", "")] for url in css_urls(style)]


def css_urls(text: str) -> Iterator[str]:
    """What a style sheet loads."""
    return (first or second for first, second in CSS_URL.findall(text))


def is_outside(url: str) -> bool:
    return bool(urlsplit(url).netloc)


def faults_of_site(site: Path) -> list[str]:
    """Links inside a built site that lead nowhere, and scripts, styles, fonts and pictures from another host."""
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]  # templates of the theme
    pages = {path: Page(path.read_text(encoding="utf-8", errors="replace")) for path in files}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        wrong += [f"{name} loads {url} from another host" for url in page.loads if is_outside(url)]
        local = [url for url in page.loads if not is_outside(url) and not url.startswith("data:")]
        for url in dict.fromkeys([*page.links, *local]):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                wrong.append(f"{name}: there is nothing at {url}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                wrong.append(f"{name}: there is no place {url}")
    for sheet in sorted(site.rglob("*.css")):
        for url in css_urls(sheet.read_text(encoding="utf-8", errors="replace")):
            if is_outside(url):
                wrong.append(f"{sheet.relative_to(site).as_posix()} loads {url} from another host")
    return wrong
