"""What the tests of both explorers look at."""

import io

import ipywidgets
import numpy as np
from PIL import Image


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def controls(widget: ipywidgets.Widget) -> dict[str, ipywidgets.Widget]:
    """All widgets below one, by description or else by the name of their type."""
    found = {getattr(widget, "description", "") or type(widget).__name__: widget}
    for child in getattr(widget, "children", ()):
        found = controls(child) | found
    return found
