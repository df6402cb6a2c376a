"""ClassEquity against torchmetrics' own per-class accuracy, in collections, in Lightning and on several ranks."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import clamkit.integrations  # noqa: F401  before torchmetrics: it lets torchvision load
from clamkit import ClamkitError, fairness

pytest.importorskip("torchmetrics", reason="torchmetrics is not installed: pip install 'clamkit[integrations]'")
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from clamkit.integrations.torchmetrics import ClassEquity


def batches(count=4, classes=5, images=40):
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(classes, (count, images), generator=generator)
    noise = torch.randn(count, images, classes, generator=generator)
    return list(zip(noise + 1.5 * torch.eye(classes)[y] * torch.linspace(0.4, 1.6, classes), y, strict=True))


def assert_is(found, expected):
    assert set(found) == {*expected.index, "lowest"}
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value, abs=1e-6), name


def test_it_agrees_with_torchmetrics_per_class_accuracy():
    equity, reference = ClassEquity(5), MulticlassAccuracy(5, average=None)
    for logits, y in batches():
        equity.update(logits, y)
        reference.update(logits, y)
    v = reference.compute().double().numpy()
    assert_is(equity.compute(), fairness(v))
    assert equity.compute()["lowest"].item() == pytest.approx(v.min())
    np.testing.assert_allclose(equity.accuracy, v, rtol=1e-6)


def test_class_numbers_images_and_ignored_labels():
    """Numbers and scores give the same; a map of labels [B, H, W] is counted pixel by pixel."""
    logits, y = batches(1)[0]
    by_number, by_score, as_map = ClassEquity(5), ClassEquity(5), ClassEquity(5, ignore_index=255)
    by_number.update(logits.argmax(1), y)
    by_score.update(logits.softmax(1), y)
    padded = torch.cat([y, torch.full((8,), 255)]).reshape(2, 4, 6)
    scores = torch.cat([logits, torch.zeros(8, 5)]).reshape(2, 4, 6, 5).movedim(-1, 1)
    as_map.update(scores, padded)
    for metric in (by_score, as_map):
        assert torch.equal(metric.right, by_number.right)
        assert torch.equal(metric.seen, by_number.seen)


def test_reset_forward_and_collections():
    """A call gives the values of the batch and keeps counting; a class that is not there is left out."""
    collection = MetricCollection([ClassEquity(5), MulticlassAccuracy(5)])
    (logits, y), (more, labels) = batches(2)
    few = y < 2
    assert_is({k: v for k, v in collection(logits[few], y[few]).items() if k != "MulticlassAccuracy"}, fairness(
        [(logits[y == c].argmax(1) == c).float().mean().item() for c in (0, 1)]
    ))  # fmt: skip
    collection.update(more, labels)
    assert collection["ClassEquity"].seen.sum() == few.sum() + 40
    collection.reset()
    assert collection["ClassEquity"].seen.sum() == 0
    one = ClassEquity(5)
    assert all(torch.isnan(value) for value in one(logits[y == 1], y[y == 1]).values())


@pytest.mark.parametrize(
    ("preds", "target", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), "not of 5 classes"),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), "of type torch.float32 do not fit"),
        (torch.zeros(3, dtype=torch.long), torch.zeros(4, dtype=torch.long), "do not fit labels"),
        (torch.zeros(4, dtype=torch.long), torch.full((4,), 7), "label"),
    ],
)
def test_what_does_not_fit_is_told(preds, target, message):
    with pytest.raises(ClamkitError, match=message):
        ClassEquity(5).update(preds, target)
    with pytest.raises(ClamkitError, match="at least two"):
        ClassEquity(1)


def one_rank(rank, port, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    metric = ClassEquity(5)
    for logits, y in batches()[rank::2]:
        metric.update(logits, y)
    results[rank] = {name: value.item() for name, value in metric.compute().items()}
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_compute_what_one_does(two_ranks):
    found = two_ranks(one_rank)
    whole = ClassEquity(5)
    for logits, y in batches():
        whole.update(logits, y)
    for rank in (0, 1):
        assert found[rank] == pytest.approx({name: value.item() for name, value in whole.compute().items()})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_it(tmp_path):
    """The lines of the documentation: update in validation_step, log_dict at the end of the epoch."""
    pl = pytest.importorskip("lightning.pytorch")
    from .training import Model, loader, sgd

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.equity = Model(), ClassEquity(10)

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.equity.update(self.model(batch[0]), batch[1])

        def on_validation_epoch_end(self):
            self.log_dict(self.equity.compute())
            self.equity.reset()

        def configure_optimizers(self):
            return sgd(self.model)

    module = Module()
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = pl.Trainer(default_root_dir=tmp_path, max_epochs=1, enable_model_summary=False, **settings)
    trainer.fit(module, loader(), loader())
    y = torch.cat([batch[1] for batch in loader()])
    with torch.no_grad():
        said = torch.cat([module.model(x) for x, _ in loader()]).argmax(1)
    expected = fairness([(said[y == c] == c).float().mean().item() for c in range(10)])
    assert trainer.callback_metrics["worst"].item() == pytest.approx(expected["worst"], abs=1e-6)
    assert trainer.callback_metrics["std"].item() == pytest.approx(expected["std"], abs=1e-6)
