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


def test_mixup_labels_are_refused():
    from timm.data import Mixup

    x, y = next(iter(loader()))
    mixed, soft = Mixup(mixup_alpha=1.0, num_classes=10)(x.reshape(-1, 1, 28, 28), y)
    criterion = CLAM(10)
    with pytest.raises(ClamkitError, match="Soft labels .mixup"):
        criterion(Model()(mixed.flatten(1)), soft)
    assert criterion.seen.sum() == 0
