"""A weighter as the criterion of a timm loop."""

import pytest
import torch

from clamkit import CLAM, ClamkitError

from .training import EPOCHS, Model, assert_same, loader, plain

pytest.importorskip("timm", reason="timm is not installed: pip install 'clamkit[integrations]'")


def test_criterion_in_a_timm_loop():
    """As timm's train.py does it: its optimizer, scaler and meters, a criterion of (output, target), validation."""
    from timm.optim import create_optimizer_v2
    from timm.utils import AverageMeter, NativeScaler, accuracy

    model, criterion = Model(), CLAM(10)
    optimizer = create_optimizer_v2(model, opt="momentum", lr=0.1, momentum=0.0, filter_bias_and_bn=False)
    scaler, top1 = NativeScaler(device="cpu"), AverageMeter()
    for _ in range(EPOCHS):
        model.train()
        for x, target in loader():
            loss = criterion(model(x), target)
            optimizer.zero_grad()
            scaler(loss, optimizer, parameters=model.parameters())
        model.eval()
        with torch.no_grad():
            for x, target in loader():
                output = model(x)
                criterion(output, target)
                top1.update(accuracy(output, target)[0].item())
        criterion.step()
    assert_same(criterion, plain())
    assert top1.avg > 20


def test_label_smoothing_is_timms():
    from timm.loss import LabelSmoothingCrossEntropy

    x, y = next(iter(loader()))
    logits = Model()(x)
    wanted = LabelSmoothingCrossEntropy(0.1)(logits, y)
    assert CLAM(10, label_smoothing=0.1)(logits, y).item() == pytest.approx(wanted.item(), rel=1e-6)


def test_as_a_part_of_the_model_it_is_in_timms_checkpoints(tmp_path):
    """--resume of timm's train.py: its saver, its EMA, its reader."""
    from timm.models import resume_checkpoint
    from timm.utils import CheckpointSaver, ModelEmaV3

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = Model()

        def forward(self, x):
            return self.layers(x)

    def build():
        model = Network()
        model.clam = CLAM(10)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def epoch(model, optimizer):
        model.train()
        for x, target in loader():
            optimizer.zero_grad()
            model.clam(model(x), target).backward()
            optimizer.step()
        model.clam.step()

    model, optimizer = build()
    average = ModelEmaV3(model)
    saver = CheckpointSaver(model, optimizer, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path))
    epoch(model, optimizer)
    average.update(model)
    saver.save_checkpoint(0, metric=1.0)
    again, optimizer = build()
    resume_checkpoint(again, str(tmp_path / "last.pth.tar"), optimizer)
    assert torch.equal(again.clam.weights, model.clam.weights)
    epoch(again, optimizer)
    assert_same(again.clam, plain())


def test_as_state_of_the_task_it_is_in_timms_checkpoints(tmp_path):
    """--resume of a train.py with tasks: the criterion is the task's, and the network's own state stays clean."""
    task = pytest.importorskip("timm.task", reason="this timm has no training tasks")
    from timm.utils import CheckpointSaver

    def build():
        model, clam = Model(), CLAM(10)
        made = task.ClassificationTask(model, clam, verbose=False)
        made.get_task_state = lambda **_: clam.state_dict()
        made.load_task_state = lambda state, **_: clam.load_state_dict(state)
        return made, torch.optim.SGD(model.parameters(), lr=0.1), clam

    def epoch(made, optimizer, clam):
        made.train()
        for x, target in loader():
            optimizer.zero_grad()
            made(x, target)["loss"].backward()
            optimizer.step()
        clam.step()

    first, optimizer, clam = build()
    folders = {"checkpoint_dir": str(tmp_path), "recovery_dir": str(tmp_path)}
    saver = CheckpointSaver(first.get_trainable_module(), optimizer, task=first, **folders)
    epoch(first, optimizer, clam)
    saver.save_checkpoint(0, metric=1.0)
    again, optimizer, clam = build()
    assert task.resume_task_checkpoint(again, str(tmp_path / "last.pth.tar"), optimizer) == 1
    epoch(again, optimizer, clam)
    assert_same(clam, plain())
    Model().load_state_dict(torch.load(tmp_path / "last.pth.tar", weights_only=True)["state_dict"])


def test_mixup_labels_are_refused():
    from timm.data import Mixup

    x, y = next(iter(loader()))
    mixed, soft = Mixup(mixup_alpha=1.0, num_classes=10)(x.reshape(-1, 1, 28, 28), y)
    criterion = CLAM(10)
    with pytest.raises(ClamkitError, match="Soft labels .mixup"):
        criterion(Model()(mixed.flatten(1)), soft)
    assert criterion.seen.sum() == 0
