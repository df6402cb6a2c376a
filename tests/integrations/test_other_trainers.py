"""The snippets of docs/trainers.md that need no callback of ours, each in the library it is for."""

import numpy as np
import pytest
import torch
from torch import nn

from clamkit import CLAM, class_accuracy, load_data

from .training import BATCH, EPOCHS, Images, Model, assert_same, loader, plain, sgd

MISSING = "{} is not installed: pip install 'clamkit[trainers]'"


def epoch(model, optimizer, clam):
    for x, y in loader():
        optimizer.zero_grad()
        clam(model(x), y).backward()
        optimizer.step()


# a script of one's own, accelerate


@pytest.mark.parametrize("step_first", [True, False])
def test_a_script_that_saves_and_resumes(tmp_path, step_first):
    """As pytorch-cifar's main.py. A step after the save is lost: the resumed run counts that epoch twice."""
    for first in (True, False):  # the first process, and the one that resumes
        model, clam = Model(), CLAM(10)
        optimizer = sgd(model)
        if not first:
            saved = torch.load(tmp_path / "ckpt.pth", weights_only=True)
            model.load_state_dict(saved["net"])
            clam.load_state_dict(saved["clam"])
        epoch(model, optimizer, clam)
        if step_first:
            clam.step()
        torch.save({"net": model.state_dict(), "clam": clam.state_dict()}, tmp_path / "ckpt.pth")
        if not step_first:
            counted = clam.seen.sum()
            clam.step()
    if step_first:
        assert_same(clam, plain())
    else:
        assert counted == 2 * len(Images())
        assert clam.epoch == 1


def test_accelerate_keeps_what_is_registered(tmp_path):
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'clamkit[integrations]'")
    from accelerate import Accelerator

    def prepared():
        accelerator, model, clam = Accelerator(cpu=True), Model(), CLAM(10)
        parts = accelerator.prepare(model, sgd(model), loader())
        accelerator.register_for_checkpointing(clam)
        return accelerator, *parts, clam

    def run(accelerator, model, optimizer, batches, clam):
        for x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(clam(model(x), y))
            optimizer.step()
        clam.step()

    accelerator, *parts = prepared()
    run(accelerator, *parts)
    accelerator.save_state(str(tmp_path))
    accelerator, *parts = prepared()
    accelerator.load_state(str(tmp_path))
    run(accelerator, *parts)
    assert_same(parts[-1], plain())


# fastai, skorch


@pytest.mark.slow
def test_fastai():
    pytest.importorskip("fastai", reason="fastai is not installed: pip install fastai")
    from fastai.callback.core import Callback
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import SGD

    class Step(Callback):
        def after_train(self):
            self.learn.loss_func.step()

    clam = CLAM(10)
    learner = Learner(DataLoaders(loader(), loader()), Model(), loss_func=clam, cbs=Step(), opt_func=SGD)
    with learner.no_logging():
        learner.fit(EPOCHS, lr=0.1, wd=0.0)
        assert_same(clam, plain())
        logits, y, each = learner.get_preds(dl=loader(), with_loss=True)
    assert each.numpy() == pytest.approx(nn.functional.cross_entropy(logits, y, reduction="none").numpy(), rel=1e-5)
    assert clam.reduction == "mean"


def test_skorch(tmp_path):
    pytest.importorskip("skorch", reason=MISSING.format("skorch"))
    from skorch import NeuralNetClassifier
    from skorch.callbacks import Callback, Checkpoint, LoadInitState

    class Step(Callback):
        def on_epoch_end(self, net, **kwargs):
            net.criterion_.step()

    def network(*callbacks, epochs):
        return NeuralNetClassifier(
            Model, criterion=CLAM, criterion__num_classes=10, optimizer=torch.optim.SGD, lr=0.1, batch_size=BATCH,
            max_epochs=epochs, train_split=None, verbose=0, predict_nonlinearity=nn.Softmax(1), callbacks=[*callbacks],
        )  # fmt: skip

    images = Images()
    whole = network(Step(), epochs=EPOCHS)
    for _ in range(2):  # fit() begins anew
        whole.fit(images.x, images.y)
        assert_same(whole.criterion_, plain())
    assert whole.predict_proba(images.x).sum(axis=1) == pytest.approx(1, abs=1e-5)

    keep = Checkpoint(dirname=str(tmp_path), monitor=None)
    network(Step(), keep, epochs=1).fit(images.x, images.y)
    resumed = network(Step(), keep, LoadInitState(keep), epochs=1)
    resumed.fit(images.x, images.y)
    assert_same(resumed.criterion_, plain())


# models that take sample_weight


def thumbnails(part):
    """[N, 49] means of 4×4 pixels and the labels, of the embedded data; every third image."""
    images = load_data("fashion_mnist_mini")
    x, y = (images.x_train, images.y_train) if part == "train" else (images.x_test, images.y_test)
    return nn.functional.avg_pool2d(x[::3].float() / 255, 4).flatten(1).numpy(), y[::3].numpy()


def rounds(model, steps=2):
    """The test accuracies of the classes after each fit, the weights moved by training accuracies between them."""
    (x, y), (x_test, y_test) = thumbnails("train"), thumbnails("test")
    clam, found = CLAM(10), []
    for _ in range(1 + steps):
        model.fit(x, y, sample_weight=clam.sample_weights(y))
        found.append(class_accuracy(y_test, model.predict(x_test), 10))
        clam.step(accuracy=class_accuracy(y, model.predict(x), 10))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
def test_logistic_regression():
    pytest.importorskip("sklearn", reason=MISSING.format("scikit-learn"))
    from sklearn.linear_model import LogisticRegression

    before, after, later = rounds(LogisticRegression(max_iter=50))
    assert after.min() > before.min() + 0.05
    assert later.min() > before.min() + 0.05
    assert abs(later.mean() - before.mean()) < 0.02


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
def test_sample_weights_are_class_weights_to_sklearn():
    pytest.importorskip("sklearn", reason=MISSING.format("scikit-learn"))
    from sklearn.linear_model import LogisticRegression

    x, y = (part[:300] for part in thumbnails("train"))
    clam = CLAM(10)
    clam.step(accuracy=np.linspace(0, 1, 10))
    mine = LogisticRegression(max_iter=20).fit(x, y, sample_weight=clam.sample_weights(y))
    theirs = LogisticRegression(max_iter=20, class_weight=dict(enumerate(clam.weights.tolist()))).fit(x, y)
    assert mine.coef_ == pytest.approx(theirs.coef_, abs=1e-2)


@pytest.mark.slow
def test_xgboost():
    pytest.importorskip("xgboost", reason=MISSING.format("xgboost"))
    pytest.importorskip("sklearn", reason=MISSING.format("scikit-learn"))
    from xgboost import XGBClassifier

    before, after, later = rounds(XGBClassifier(n_estimators=10, max_depth=2, n_jobs=1, tree_method="hist"))
    assert max(after.min(), later.min()) > before.min() + 0.03
    assert abs(later.mean() - before.mean()) < 0.03
