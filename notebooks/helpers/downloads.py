"""Links that save something from the browser, wherever the kernel runs."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

MIME = {".png": "image/png", ".csv": "text/csv", ".json": "application/json", ".html": "text/html"}


def link(content: bytes, name: str, text: str) -> str:
    """HTML of a link with a text that saves `content` as a file of this name."""
    encoded = base64.b64encode(content).decode()
    return f'<a download="{escape(name)}" href="data:{MIME[Path(name).suffix]};base64,{encoded}">{escape(text)}</a>'
