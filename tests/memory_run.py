"""Finished runs that nobody trained, for figures and tables."""

import numpy as np
import pandas as pd

from clamkit.engine.config import RunConfig
from clamkit.engine.store import Logits, Run
from clamkit.metrics import fairness


class MemoryRun(Run):
    """A finished run that nobody trained: given test accuracies (and weights) by epoch and class.

    With the accuracies of held-out images it has logits: 100 images of each class, test and held-out.
    """

    def __init__(self, config: RunConfig, accuracy: np.ndarray, weight=None, held_out: np.ndarray | None = None):
        accuracy = np.atleast_2d(np.asarray(accuracy, dtype=float))
        epochs, classes = accuracy.shape
        weight = np.ones_like(accuracy) if weight is None else np.atleast_2d(np.asarray(weight, dtype=float))
        self._config, self._held_out = config, held_out
        self._summary = {
            **fairness(accuracy[-1][np.isfinite(accuracy[-1])]).to_dict(),
            "seconds": 1.0,
            "class_names": [f"class {i}" for i in range(classes)],
        }
        self._history = pd.DataFrame(
            {
                "epoch": np.repeat(np.arange(1, epochs + 1), classes),
                "class": np.tile(np.arange(classes), epochs),
                "weight": weight.ravel(),
                "train_accuracy": accuracy.ravel(),
                "train_loss": 1 - accuracy.ravel(),
                "test_accuracy": accuracy.ravel(),
            }
        )

    config = property(lambda self: self._config)
    summary = property(lambda self: self._summary)
    history = property(lambda self: self._history)

    @property
    def predictions(self) -> pd.DataFrame:
        """100 test images of each class; the wrong ones are taken for the next class."""
        return self._predicted(self.test_accuracy.to_numpy())

    @staticmethod
    def _predicted(accuracy: np.ndarray) -> pd.DataFrame:
        label = np.repeat(np.arange(len(accuracy)), 100)
        right = np.concatenate([np.arange(100) < round(100 * share) for share in accuracy])
        return pd.DataFrame({"label": label, "prediction": np.where(right, label, (label + 1) % len(accuracy))})

    @property
    def logits(self) -> Logits:
        """1 for the predicted class, 0 for the others."""
        if self._held_out is None:
            return super().logits
        parts = []
        for accuracy in (self.wide("test_accuracy").iloc[-1], self._held_out):
            found = self._predicted(np.asarray(accuracy))
            parts += [np.eye(len(accuracy), dtype=np.float16)[found["prediction"]], found["label"].to_numpy()]
        return Logits(*parts)

    @property
    def test_accuracy(self) -> pd.Series:
        return self.wide("test_accuracy").iloc[-1].rename(self.config.method)
