"""The losses against their formulas and torch's own."""

import pytest
import torch
import torch.nn.functional as F

from clamkit.errors import ClamkitError
from clamkit.methods import losses
from clamkit.methods.weighters import build_method


@pytest.mark.parametrize(("gamma", "theta"), [(2.0, 0.0), (2.5, 0.8), (0.5, 0.0)])
def test_focal_and_pw_are_their_formulas(gamma, theta):
    logits = torch.randn(64, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    y = torch.arange(64) % 7
    p = logits.softmax(1)[torch.arange(64), y]
    expected = -p.log() * ((1 - p) ** gamma + theta)
    assert torch.allclose(
        losses.performance_weighted(logits, y, gamma=gamma, theta=theta).double(), expected, atol=1e-5
    )
    if theta == 0:
        assert torch.allclose(losses.focal(logits, y, gamma=gamma).double(), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["normal", "focal", "pw"])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_losses_are_finite_with_finite_gradients_at_any_confidence(method, scale):
    for dtype in (torch.float32, torch.bfloat16):
        logits = (scale * torch.eye(5, dtype=dtype)).requires_grad_()
        for y in (torch.arange(5), (torch.arange(5) + 1) % 5):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float32):
                loss = build_method(method, None, 5).loss(logits, y)
            (gradient,) = torch.autograd.grad(loss, logits)
            assert torch.isfinite(loss)
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
def test_powers_below_one_have_a_finite_gradient_at_certainty(gamma):
    logits = (1e4 * torch.eye(5)).requires_grad_()  # 1 − p is 0, where the slope of a power below one is infinite
    (gradient,) = torch.autograd.grad(losses.focal(logits, torch.arange(5), gamma=gamma).sum(), logits)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_and_label_smoothing_are_torchs(smoothing):
    logits, y = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    each = losses.cross_entropy(logits, y, label_smoothing=smoothing)
    assert torch.equal(each, F.cross_entropy(logits, y, label_smoothing=smoothing, reduction="none"))
    weighter = build_method("normal", None, 5, label_smoothing=smoothing)
    assert weighter.loss(logits, y).item() == pytest.approx(
        F.cross_entropy(logits, y, label_smoothing=smoothing).item()
    )


@pytest.mark.parametrize(
    ("logits", "y", "says"),
    [
        ((4, 3), torch.full((4, 3), 0.5), r"type torch.float32 and shape \(4, 3\) are not class numbers"),
        ((4, 3), torch.zeros(4), "not class numbers"),
        ((4, 3), torch.zeros(4, dtype=torch.bool), "not class numbers"),
        ((4, 3), torch.zeros(5, dtype=torch.long), r"shape \(4, 3\) do not fit labels of shape \(5,\)"),
        ((4, 3, 2), torch.zeros(4, dtype=torch.long), "do not fit"),
    ],
)
def test_labels_that_are_no_classes_are_refused(logits, y, says):
    with pytest.raises(ClamkitError, match=says):
        losses.checked_labels(torch.zeros(logits), y, 3)
