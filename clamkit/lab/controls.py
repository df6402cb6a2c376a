"""What a finished run does on its held-out images, and the free control: class biases fitted there without training."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.engine.config import RunConfig
from clamkit.engine.store import Logits, Run
from clamkit.errors import ClamkitError, check_known
from clamkit.methods.posthoc import Biases, fit_biases
from clamkit.methods.specs import BIASES
from clamkit.metrics import class_accuracy, fairness


class BiasedRun(Run):
    """A finished run with class biases added to its logits; its method is called "<method>+biases" or "+tail_biases".

    Weights and history are those of the run; only the test accuracies of the last epoch are those with biases.
    """

    def __init__(self, run: Run, accuracy: ArrayLike, objective: str, biases: Biases | None = None):
        self.run, self.objective, self.biases = run, objective, biases
        self._accuracy = np.asarray(accuracy, dtype=np.float64)

    @cached_property
    def config(self) -> RunConfig:
        return self.run.config.model_copy(update={"method": self.run.config.method + BIASES[self.objective]})

    @cached_property
    def predictions(self) -> pd.DataFrame:
        if self.biases is None:
            raise ClamkitError(f"{self.name} is committed: only its class accuracies are at hand.")
        logits = self.run.logits
        return pd.DataFrame({"label": logits.test_labels, "prediction": self.biases.predict(logits.test)})

    @property
    def logits(self) -> Logits:
        raise ClamkitError(f"the biases of {self.name} were fitted on its held-out images: what it says of these is no "
                           "measure of it. Take the logits of the run itself.")  # fmt: skip

    @property
    def test_accuracy(self) -> pd.Series:
        return pd.Series(self._accuracy, index=self.class_names, name=self.config.method)

    @property
    def class_names(self) -> list[str]:
        return self.run.class_names

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self.run.summary | fairness(self.test_accuracy.dropna()).to_dict()

    @cached_property
    def history(self) -> pd.DataFrame:
        history = self.run.history.copy()
        last = history["epoch"] == history["epoch"].max()
        history.loc[last, "test_accuracy"] = self._accuracy[history.loc[last, "class"]]
        return history


def held_out_accuracy(run: Run) -> np.ndarray:
    """Of each class under the final network, on the images that the run kept out of training; committed or its own."""
    committed = getattr(run, "held_out_accuracy", None)
    if committed is not None:
        return committed
    logits = run.logits
    return class_accuracy(logits.holdout_labels, logits.holdout.argmax(1), logits.holdout.shape[1])


def with_biases(run: Run, objective: str = "average-std") -> BiasedRun:
    """A finished run of any method with class biases fitted on its held-out images (see `posthoc.fit_biases`).

    It stands in tables and figures beside its run: "Normal + biases", "Normal + tail biases". Of a committed run the
    class accuracies with biases are committed too.
    """
    check_known("objective", objective, BIASES)
    if not run.config.holdout:
        raise ClamkitError(f"{run.name} has no held-out images to fit biases on, and test images are not for fitting: "
                           "train it with holdout=50, images of each class.")  # fmt: skip
    if objective in (committed := getattr(run, "biased_accuracy", {})):
        return BiasedRun(run, committed[objective], objective)
    logits = run.logits
    biases = fit_biases(logits.holdout, logits.holdout_labels, objective=objective, class_names=run.class_names)
    predicted = biases.predict(logits.test)
    return BiasedRun(run, class_accuracy(logits.test_labels, predicted, len(run.class_names)), objective, biases)
