"""Figures that are drawn again and again: texts are written once and pasted from then on."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.font_manager import FontProperties
from PIL import Image


class _Renderer(RendererAgg):
    """Pastes texts that were written before, at whole pixels: writing them letter by letter takes longest of all."""

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        pixels, left, below = _written(s, prop.copy(), angle, ismath, gc.get_rgb(), self.dpi)
        self.draw_image(gc, round(x) + left, round(self.height - y) + below, pixels)


@lru_cache(maxsize=2000)
def _written(text: str, font: FontProperties, angle: float, ismath: bool, colour: tuple, dpi: float) -> tuple:
    """A text as pixels, the lowest row first, and where they are as seen from its beginning: to the right, above."""
    margin = 2 * font.get_size_in_points() * dpi / 72
    across, up = (len(text) * margin / 2 * f(np.radians(angle)) for f in (np.cos, np.sin))
    x, y = (round(margin - min(length, 0)) for length in (across, up))
    renderer = RendererAgg(*(round(abs(length) + 2 * margin) for length in (across, up)), dpi)
    gc = renderer.new_gc()
    gc.set_foreground(colour, isRGBA=True)
    renderer.draw_text(gc, x, renderer.height - y, text, font, angle, ismath)
    pixels = np.asarray(renderer.buffer_rgba())[::-1]
    left, low, right, high = Image.fromarray(pixels[..., 3]).getbbox() or (0, 0, 1, 1)
    return pixels[low:high, left:right].copy(), left - x, low - y


class PastingCanvas(FigureCanvasAgg):
    """A canvas for a figure that is drawn again and again with many of the same texts."""

    _made: _Renderer | None = None

    def get_renderer(self) -> _Renderer:
        width, height, dpi = *self.figure.bbox.size, self.figure.dpi
        if self._made is None or (self._made.width, self._made.height, self._made.dpi) != (width, height, dpi):
            self._made = _Renderer(width, height, dpi)
        return self._made
