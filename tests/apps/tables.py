"""Tables of predictions for the tests of the diagnosis."""

import re

import pandas as pd


def table(*rows: str, ids=None) -> pd.DataFrame:
    """Rows such as "cat→dog*3": three images of a cat taken for a dog."""
    parts = [re.fullmatch(r"(.+)→(.+?)(?:\*(\d+))?", row).groups() for row in rows]
    images = [(label, prediction) for label, prediction, times in parts for _ in range(int(times or 1))]
    frame = pd.DataFrame(images, columns=["label", "prediction"])
    return frame if ids is None else frame.assign(id=ids)
