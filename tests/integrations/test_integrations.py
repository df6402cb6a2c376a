"""What all integrations stand on: a weighter as a criterion, its state as JSON, a library that is missing."""

import importlib
import json
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from clamkit import CLAM, APStar, ClamkitError
from clamkit.integrations import load_weighter_state, weighter_state

from .training import BATCH, IMAGES, Model, loader


def test_only_training_batches_are_counted_and_each_once():
    criterion, (x, y) = CLAM(10), next(iter(loader()))
    logits = Model()(x)
    loss = criterion(logits, y)
    assert criterion.seen.sum() == BATCH
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            torch.testing.assert_close(criterion(logits, y), loss.detach())
    criterion.eval()
    torch.testing.assert_close(criterion(logits, y), loss)
    assert criterion.seen.sum() == BATCH
    criterion.train()
    criterion(logits, y).backward()
    assert criterion.seen.sum() == 2 * BATCH


def test_labels_of_any_whole_number_type_weigh_the_same():
    logits, y = torch.randn(10, 10, generator=torch.Generator().manual_seed(0)), torch.arange(10)
    clam = CLAM(10)
    clam.step(accuracy=np.linspace(0, 1, 10))
    for kind in (torch.uint8, torch.int16, torch.int32):
        torch.testing.assert_close(clam(logits, y.to(kind)), clam.loss(logits, y))  # uint8 as a mask picks others
    clam.forget()
    clam.observe(logits, y.to(torch.uint8))
    assert clam.seen.tolist() == [1] * 10


def test_state_survives_json_to_the_bit():
    first, second = (APStar(10) for _ in range(2))
    first.step(accuracy=np.linspace(0, 1, 10), loss=np.linspace(2, 1 / 3, 10))
    x, y = next(iter(loader()))
    first.observe(Model()(x), y)
    load_weighter_state(second, json.loads(json.dumps(weighter_state(first))))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    with pytest.raises(ClamkitError, match="not those of this CLAM"):
        load_weighter_state(CLAM(10), weighter_state(first))


def test_counts_of_all_ranks_survive_a_checkpoint(monkeypatch):
    """Two ranks halfway through an epoch, saved, resumed on two ranks; `test_weighters` has real processes."""
    batches, model = list(loader()), Model()
    ranks, resumed = [CLAM(10), CLAM(10)], [CLAM(10), CLAM(10)]

    def play(rank, group):
        """`all_reduce` adds what the other rank has."""
        other = group[1 - rank]
        counts = {torch.int64: torch.stack([other.correct, other.seen]), torch.float32: other.loss_sum}
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.add_(counts[tensor.dtype]))

    for i, (x, y) in enumerate(batches[:5]):
        ranks[i % 2](model(x), y)
    play(0, ranks)
    saved = weighter_state(ranks[0])
    assert sum(saved["seen"]) == 5 * BATCH
    for rank in (0, 1):
        play(rank, resumed)
        load_weighter_state(resumed[rank], saved)
    for i, (x, y) in enumerate(batches[5:]):
        resumed[i % 2](model(x), y)
    play(0, resumed)
    assert resumed[0].totals()[1].sum() == IMAGES
    resumed[0].step()
    monkeypatch.undo()
    alone = CLAM(10)
    for x, y in batches:
        alone(model(x), y)
    alone.step()
    assert torch.equal(resumed[0].weights, alone.weights)


@pytest.mark.parametrize(("module", "library"), [("huggingface", "transformers"), ("lightning", "lightning")])
def test_a_missing_library_names_the_extra(monkeypatch, module, library):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"clamkit.integrations.{module}", raising=False)
    with pytest.raises(ClamkitError, match=rf"{library} is not installed.*clamkit\[integrations\]"):
        importlib.import_module(f"clamkit.integrations.{module}")
