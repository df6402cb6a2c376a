"""ClassBias under scikit-learn's own checks, and what it does to a class that the data hold down."""

import pickle

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'clamkit[trainers]'")
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from clamkit import fit_biases
from clamkit.integrations.sklearn import SCORERS, ClassBias, class_accuracy_std, equity_score, worst_class_accuracy


@pytest.mark.slow
@parametrize_with_checks([ClassBias(), ClassBias(LinearSVC(), cv=2), ClassBias(LogisticRegression(), max_cost=0.01)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def unbalanced():
    """(X, y, X_test, y_test): one class is rare in training, all are equally frequent in the test."""
    X, y = make_classification(6000, 8, n_informative=5, n_classes=3, class_sep=0.8, random_state=0)
    rare = (y == 2) & (np.arange(len(y)) % 12 > 0)
    train = (np.arange(len(y)) < 4000) & ~rare
    names = np.array(["cat", "dog", "yak"])
    return X[train], names[y[train]], X[4000:], names[y[4000:]]


@pytest.mark.parametrize("inner", [LogisticRegression(), LinearSVC()], ids=lambda inner: type(inner).__name__)
def test_a_rare_class_is_raised(unbalanced, inner):
    X, y, X_test, y_test = unbalanced
    plain, biased = inner.fit(X, y), ClassBias(inner).fit(X, y)
    worst = [recall_score(y_test, model.predict(X_test), average=None)[2] for model in (plain, biased)]
    assert worst[1] > worst[0] + 0.15
    assert biased.bias_.argmax() == 2
    assert biased.biases_.class_names == ("cat", "dog", "yak")
    assert hasattr(biased, "predict_proba") == hasattr(plain, "predict_proba")


def test_it_predicts_the_estimators_log_probabilities_plus_the_biases(unbalanced):
    X, y, X_test, _ = unbalanced
    model = ClassBias(LogisticRegression()).fit(X, y)
    p = LogisticRegression().fit(X, y).predict_proba(X_test) * np.exp(model.bias_)
    np.testing.assert_allclose(model.predict_proba(X_test), p / p.sum(1, keepdims=True), rtol=1e-6)
    assert (model.predict(X_test) == model.classes_[p.argmax(1)]).all()


@pytest.mark.slow
def test_it_works_in_pipelines_and_searches(unbalanced):
    X, y, _, _ = unbalanced
    search = GridSearchCV(
        make_pipeline(StandardScaler(), ClassBias(LogisticRegression(), cv=3)),
        {"classbias__max_cost": [0.0, None], "classbias__estimator__C": [0.1, 1.0]}, cv=2, scoring="balanced_accuracy",
    ).fit(X, y)  # fmt: skip
    assert search.best_score_ > cross_val_score(LogisticRegression(), X, y, cv=2, scoring="balanced_accuracy").mean()


@pytest.mark.parametrize("form", ["columns by name", "array of texts", "list of texts"])
def test_the_estimator_gets_the_data_as_they_were_given(form):
    """Pipelines that choose columns by name or read texts; what the biases are fitted on, by scikit-learn alone."""
    rng, y = np.random.default_rng(0), np.arange(300) % 10 // 7  # seven of ten are of class 0
    frame = pd.DataFrame({"colour": np.where(rng.random(300) < 0.3 + 0.4 * y, "red", "blue"), "size": rng.normal(y)})
    texts = [f"{colour} {'large' if size > 0.5 else 'small'}" for colour, size in frame.to_numpy()]
    X = {"columns by name": frame, "array of texts": np.array(texts), "list of texts": texts}[form]
    reads = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
    inner = make_pipeline(reads if X is frame else TfidfVectorizer(), LogisticRegression())
    model = ClassBias(inner).fit(X, y)
    split = StratifiedKFold(5, shuffle=True, random_state=0)
    p = cross_val_predict(inner, X, y, cv=split, method="predict_proba")
    np.testing.assert_allclose(model.bias_, fit_biases(np.log(p + 1e-12), y).values)
    assert (model.predict(X) == (np.log(inner.fit(X, y).predict_proba(X) + 1e-12) + model.bias_).argmax(1)).all()
    assert model.bias_[1] > 0
    assert cross_val_score(ClassBias(inner), X, y, cv=2, scoring=worst_class_accuracy).shape == (2,)


def test_a_class_with_one_image_gets_no_biases():
    X, y = np.arange(20.0)[:, None], np.array([0] * 10 + [1] * 9 + [2])
    model = ClassBias().fit(X, y)
    assert model.biases_ is None
    assert not model.bias_.any()
    assert model.predict(X).shape == (20,)


@pytest.mark.slow
def test_missing_values_go_to_those_who_take_them(unbalanced):
    X, y, X_test, _ = unbalanced
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.05, np.nan, X)
    assert set(ClassBias(HistGradientBoostingClassifier(max_iter=5), cv=2).fit(X, y).predict(X_test)) <= {*y}
    with pytest.raises(ValueError, match="NaN"):
        ClassBias().fit(X, y)


def test_wrong_settings_are_told(unbalanced):
    X, y, _, _ = unbalanced
    with pytest.raises(ValueError, match="unknown objective 'wurst'"):
        ClassBias(objective="wurst").fit(X, y)


def test_scorers_against_recall(unbalanced):
    """scikit-learn's recall of each class of each part is the class accuracy there."""
    X, y, _, _ = unbalanced
    model = LogisticRegression()
    said = cross_val_predict(model, X, y, cv=3)
    parts = [test for _, test in StratifiedKFold(3).split(X, y)]
    recalls = [recall_score(y[part], said[part], average=None) for part in parts]
    found = cross_validate(model, X, y, cv=3, scoring=SCORERS)
    expected = {
        "worst_class_accuracy": [r.min() for r in recalls],
        "worst_tenth_accuracy": [r.min() for r in recalls],  # a tenth of three classes is one
        "class_accuracy_std": [-r.std(ddof=1) for r in recalls],
        "class_accuracy_range": [-np.ptp(r) for r in recalls],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[f"test_{name}"], values, err_msg=name)
    np.testing.assert_allclose(
        cross_val_score(model, X, y, cv=3, scoring=class_accuracy_std), expected["class_accuracy_std"]
    )


def test_scorers_choose_in_a_search_and_go_to_other_processes(unbalanced):
    X, y, _, _ = unbalanced
    scorer = pickle.loads(pickle.dumps(worst_class_accuracy))
    search = GridSearchCV(LogisticRegression(), {"class_weight": [None, "balanced"]}, cv=2, scoring=scorer)
    assert search.fit(X, y).best_params_ == {"class_weight": "balanced"}


def test_a_prediction_that_no_label_has_is_wrong():
    assert equity_score(["a", "a", "b"], ["a", "z", "b"], metric="lowest") == 0.5
    with pytest.raises(ValueError, match="at least two classes"):
        equity_score(["a", "a"], ["a", "a"], metric="std")
