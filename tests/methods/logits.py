"""Simulated logits for the tests of class biases, and what biases do to them."""

import numpy as np

from clamkit.metrics import class_accuracy, fairness


def images(per_class, signal, held_down=0.0, seed=0, calibrated=False):
    """(logits, labels): Gaussian logits, the label's own `signal` higher, and `held_down` taken off each class.

    calibrated: the log-likelihoods of the classes instead, of which the softmax is the true posterior.
    """
    signal = np.asarray(signal, dtype=float)
    labels = np.repeat(np.arange(len(signal)), per_class)
    logits = np.random.default_rng(seed).normal(size=(len(labels), len(signal)))
    logits[np.arange(len(labels)), labels] += signal[labels]
    if calibrated:
        logits = signal * logits - signal**2 / 2
    return logits - held_down, labels


def measured(logits, labels, values=0.0):
    """The metrics of `fairness` under biases."""
    return fairness(class_accuracy(labels, (logits + values).argmax(1), logits.shape[1]))


UNEVEN = images(300, [3.0, 2.2, 1.2, 2.6], held_down=[0.0, 0.0, 0.3, 0.5])
SMALL = images(20, [3.0, 2.0, 1.0])
