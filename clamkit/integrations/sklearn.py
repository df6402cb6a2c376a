"""Class biases as a scikit-learn classifier, and scorers of how even the classes are.

from clamkit.integrations.sklearn import SCORERS, ClassBias, worst_class_accuracy

ClassBias(LogisticRegression(), max_cost=0.005).fit(X, y).predict(X_new)
cross_val_score(LogisticRegression(), X, y, scoring=worst_class_accuracy)
cross_validate(LogisticRegression(), X, y, scoring=SCORERS)  # all of them
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax

from clamkit.errors import not_installed
from clamkit.methods.posthoc import fit_biases
from clamkit.metrics import TAIL, fairness

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import make_scorer
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.utils import get_tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError as error:
    raise not_installed("scikit-learn", "trainers") from error

TINY = 1e-12  # added to probabilities before the log


class ClassBias(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Any classifier with one bias a class added to its logits, fitted on predictions of images it did not see.

    estimator     with predict_proba or decision_function, pipelines too; default LogisticRegression()
    objective, max_cost   as in `clamkit.fit_biases`
    cv            parts of the data: each is predicted by a copy that is fitted on the others, and biases are fitted on
                  these predictions; estimator_ is then fitted on everything
    random_state  of the parts

    Fitted: classes_, estimator_, bias_ (one number for each of classes_), biases_ (the `Biases`, None where a class has
    too few images for parts: then bias_ is zero).
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        objective: str = "average-std",
        max_cost: float | None = None,
        cv: int = 5,
        random_state: int | None = 0,
    ):
        self.estimator, self.objective, self.max_cost = estimator, objective, max_cost
        self.cv, self.random_state = cv, random_state

    def fit(self, X: Any, y: Any) -> ClassBias:
        y = column_or_1d(y, warn=True)  # X is the estimator's to check: it may be a table with names, or texts
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"biases need at least two classes, and y has no more than one class: {self.classes_}.")
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        self.estimator_ = clone(estimator).fit(X, y)
        known = ("n_features_in_", "feature_names_in_")
        vars(self).update({name: getattr(self.estimator_, name) for name in known if hasattr(self.estimator_, name)})
        self.bias_, self.biases_ = np.zeros(len(self.classes_)), None
        parts = min(self.cv, int(np.bincount(labels).min()))
        if parts >= 2:
            method = "predict_proba" if hasattr(self.estimator_, "predict_proba") else "decision_function"
            split = StratifiedKFold(parts, shuffle=True, random_state=self.random_state)
            scores = _logits(cross_val_predict(clone(estimator), X, y, cv=split, method=method), method)
            names = [str(name) for name in self.classes_]
            options = {"objective": self.objective, "max_cost": self.max_cost, "class_names": names}
            self.biases_ = fit_biases(scores, labels, **options)
            self.bias_ = self.biases_.values
        return self

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        method = "predict_proba" if hasattr(self.estimator_, "predict_proba") else "decision_function"
        return _logits(getattr(self.estimator_, method)(X), method) + self.bias_

    def predict(self, X: Any) -> np.ndarray:
        best = self._scores(X).argmax(axis=1)
        return self.classes_[best]

    @available_if(lambda self: hasattr(getattr(self, "estimator_", self.estimator), "predict_proba"))
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ∝ those of the estimator times exp(bias)."""
        return softmax(self._scores(X), axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(LogisticRegression() if self.estimator is None else self.estimator).input_tags
        return tags


def _logits(found: np.ndarray, method: str) -> np.ndarray:
    """One column a class: logs of probabilities, or decisions; a binary decision z is the columns 0 and z."""
    if method == "predict_proba":
        return np.log(found + TINY)
    return np.column_stack([np.zeros(len(found)), found]) if found.ndim == 1 else found


def equity_score(y_true: Any, y_pred: Any, *, metric: str = "worst", tail: float = TAIL) -> float:
    """A metric of `clamkit.fairness`, or "lowest", of the accuracies of the classes that y_true has."""
    y_true, y_pred = np.asarray(y_true), np.asarray(y_pred)
    _, labels = np.unique(y_true, return_inverse=True)
    v = np.bincount(labels, y_true == y_pred) / np.bincount(labels)
    return float(v.min() if metric == "lowest" else fairness(v, tail)[metric])


# higher is better for all scorers, as scikit-learn has it: std and range come with a minus
worst_class_accuracy = make_scorer(equity_score, metric="lowest")
worst_tenth_accuracy = make_scorer(equity_score, metric="worst")
class_accuracy_std = make_scorer(equity_score, metric="std", greater_is_better=False)
class_accuracy_range = make_scorer(equity_score, metric="range", greater_is_better=False)
SCORERS = {
    "worst_class_accuracy": worst_class_accuracy,
    "worst_tenth_accuracy": worst_tenth_accuracy,
    "class_accuracy_std": class_accuracy_std,
    "class_accuracy_range": class_accuracy_range,
}
