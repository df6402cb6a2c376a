"""Texts that are pasted look like those that matplotlib writes."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from helpers import pasted_text


@pytest.mark.parametrize("angle", [0, 30, 90, 200])
@pytest.mark.parametrize("colour", [(0, 0, 0, 1), (1, 0.2, 0, 0.5)])
def test_a_pasted_text_is_the_written_one(angle, colour):
    """Every time, at places that are whole pixels; at others it is moved by half a pixel at most."""
    usual, pasting = RendererAgg(300, 300, 100), pasted_text._Renderer(300, 300, 100)
    for x, y in ((150, 140), (170, 90)):
        for renderer in (usual, pasting):
            gc = renderer.new_gc()
            gc.set_foreground(colour, isRGBA=True)
            renderer.draw_text(gc, x, y, "Ångström (jig)", FontProperties(size=9), angle)
    drawn, pasted = (np.asarray(renderer.buffer_rgba()).astype(int) for renderer in (usual, pasting))
    ink = drawn[..., 3:] * (255 - drawn[..., :3])
    assert ink.any()
    assert np.abs(drawn[..., 3] - pasted[..., 3]).max() <= 2
    assert np.abs(ink - pasted[..., 3:] * (255 - pasted[..., :3])).max() <= 4 * 255


def test_a_figure_on_it_has_its_texts():
    pictures = []
    for canvas in (FigureCanvasAgg, pasted_text.PastingCanvas):
        figure = Figure((3, 2), dpi=100)
        canvas(figure)
        figure.subplots().set_title("a title\nof two lines")
        for dpi in (100, 60, 100):  # as for an export, and back
            figure.set_dpi(dpi)
            figure.canvas.draw()
        pictures.append(np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(float).mean(axis=2))
    assert pictures[0].shape == pictures[1].shape == (200, 300)
    dark = [255 - picture for picture in pictures]
    assert dark[1].sum() == pytest.approx(dark[0].sum(), rel=0.02)
