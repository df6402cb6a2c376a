"""The peers of CLAM against plain loops over samples and classes, alone and on two ranks."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist

from clamkit import METHODS, RunConfig, train
from clamkit.engine.loop import count, set_up
from clamkit.engine.store import COLUMNS, RunStore
from clamkit.errors import ClamkitError
from clamkit.methods.peers import CFOL, TLA, ClassBalanced, GroupDRO, LogitAdjusted
from clamkit.methods.weighters import build_method
from tests.ranks import training_rank


def batch(n=5, size=64, seed=0):
    """Logits and labels; small batches miss classes."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(size, n, generator=generator), torch.randint(0, n, (size,), generator=generator)


def cross_entropies(logits, y):
    return [math.log(sum(map(math.exp, row))) - row[label] for row, label in zip(logits.tolist(), y, strict=True)]


# --------------------------------------------------------------------------------------------------- group DRO


def group_dro(q, logits, y, eta):
    """(new q, loss of the batch), class by class."""
    losses, n = cross_entropies(logits, y.tolist()), len(q)
    each = [[loss for loss, label in zip(losses, y.tolist(), strict=True) if label == k] for k in range(n)]
    means = [sum(part) / len(part) if part else 0.0 for part in each]
    raw = [q[k] * math.exp(eta * means[k]) for k in range(n)]
    q = [x / sum(raw) for x in raw]
    return q, sum(q[k] * means[k] for k in range(n))


@pytest.mark.parametrize("size", [64, 4])
@pytest.mark.parametrize("eta", [0.01, 0.7])
def test_group_dro_is_the_plain_loop(size, eta):
    one, two, q = GroupDRO(5, eta), GroupDRO(5, eta), [0.2] * 5
    for seed in range(20):
        logits, y = batch(size=size, seed=seed)
        q, expected = group_dro(q, logits, y, eta)
        loss = one(logits.requires_grad_(), y)  # forward
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        two.observe(logits.detach(), y)  # the same in two calls
        assert two.loss(logits, y).item() == loss.item()
        assert one.weights.tolist() == pytest.approx([5 * x for x in q], rel=1e-5)
        if seed % 7 == 6:
            one.step()
            two.step()
            assert one.weights.tolist() == pytest.approx([5 * x for x in q], rel=1e-5), "an epoch ends, nothing moves"


def test_group_dro_weighs_classes_alike_however_many_samples_they_have():
    logits = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = torch.tensor([0] + [1] * 11)
    dro = GroupDRO(2, 1e-9)
    (gradient,) = torch.autograd.grad(dro(logits, y), logits)
    miss = logits.detach().softmax(1) - torch.nn.functional.one_hot(y, 2)
    assert torch.allclose(gradient, miss * torch.tensor([0.5] + [0.5 / 11] * 11)[:, None], atol=1e-6)


@pytest.mark.parametrize("build", [partial(GroupDRO, 5, 0.5), partial(CFOL, 5, 0.5, 0.1), partial(TLA, 5)])
def test_dense_labels_with_ignored_ones_are_the_rest_alone(build):
    """[2, 5, 3, 4] with some labels ignored, class 0 among the rest or not, against the rest as a flat batch."""
    dense, flat = build(), build()
    for seed in range(3):
        logits, y = batch(size=24, seed=seed)
        kept = (y != 1) & ((y != 0) | (seed > 0))
        shaped = logits.clone().view(2, 3, 4, 5).movedim(-1, 1).requires_grad_()
        labels = torch.where(kept, y, -100).view(2, 3, 4)
        ours = dense(shaped, labels)
        theirs = flat(logits[kept].requires_grad_(), y[kept])
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
        (gradient,) = torch.autograd.grad(ours, shaped)
        assert gradient.isfinite().all()
        assert dense.weights.tolist() == pytest.approx(flat.weights.tolist(), rel=1e-6)
        assert all(map(torch.equal, dense.totals()[:2], flat.totals()[:2]))


def test_group_dro_waits_for_its_start_and_evaluation_moves_nothing():
    dro, (logits, y) = GroupDRO(5, 0.5, start_epoch=1), batch()
    dro(logits.requires_grad_(), y)
    assert dro.weights.tolist() == [1.0] * 5
    dro.step()
    dro(logits, y)
    moved = dro.weights.clone()
    assert not torch.equal(moved, torch.ones(5))
    with torch.no_grad():
        dro(logits, y)
    dro.eval()(logits, y)
    dro.observe(logits, y)
    assert torch.equal(dro.weights, moved)


def test_a_loss_that_is_not_finite_leaves_the_weights():
    dro, (logits, y) = GroupDRO(5), batch()
    dro.observe(logits * torch.nan, y)
    assert dro.weights.tolist() == [1.0] * 5


@pytest.mark.parametrize("eta", [0, -1, math.inf, math.nan])
def test_bad_steps_of_group_dro(eta):
    with pytest.raises(ClamkitError, match=f"eta={eta}: it must be a finite number above 0"):
        GroupDRO(5, eta)


def test_group_dro_is_not_divided_by_sizes_twice():
    with pytest.raises(ClamkitError, match="takes no sizes="):
        GroupDRO(5, sizes=[1, 2, 3, 4, 5])


def test_a_second_pass_counts_but_does_not_move(small_npz):
    from clamkit import load_data

    config = RunConfig(dataset=str(small_npz), method="group_dro", eta=0.5, batch_size=20)
    state = set_up(config, load_data(small_npz), torch.device("cpu"))
    count(state, state.batches.plain(state.dataset.x_train, state.dataset.y_train))
    assert state.weighter.totals()[1].tolist() == [20, 20, 20]
    assert state.weighter.weights.tolist() == [1.0] * 3
    assert state.weighter.training


# -------------------------------------------------------------------------------------------------------- CFOL


def cfol(scores, drawn, logits, y, eta):
    """w_c += η·1[wrong]/(probability of c), sample by sample."""
    scores = list(scores)
    for row, label in zip(logits.tolist(), y.tolist(), strict=True):
        if row.index(max(row)) != label:
            scores[label] += eta / drawn[label]
    return scores


def probabilities(scores, gamma):
    raw = [math.exp(score) for score in scores]
    return [gamma / len(raw) + (1 - gamma) * x / sum(raw) for x in raw]


@pytest.mark.parametrize(("gamma", "eta"), [(0.5, 0.01), (0.1, 0.003), (1.0, 0.01)])
@pytest.mark.parametrize("acts_on", ["sampling", "loss"])
def test_cfol_is_the_plain_loop(gamma, eta, acts_on):
    sizes = [10, 20, 30, 40, 100]
    weighter = CFOL(5, gamma, eta, acts_on=acts_on, sizes=sizes)
    scores, shares = [0.0] * 5, [size / 200 for size in sizes]
    drawn = shares
    for epoch in range(3):
        for seed in range(6):
            logits, y = batch(seed=10 * epoch + seed)
            scores = cfol(scores, drawn, logits, y, eta)
            loss = weighter(logits.requires_grad_(), y)
            p = probabilities(scores, gamma)
            assert weighter.weights.tolist() == pytest.approx([5 * x for x in p], rel=1e-6)
            weight = [5 * p[label] if acts_on == "loss" else 1.0 for label in y.tolist()]
            assert loss.item() == pytest.approx(
                np.mean(np.multiply(weight, cross_entropies(logits, y.tolist()))), rel=1e-5
            )
        weighter.step()
        if acts_on == "sampling":  # an image is drawn by the weight of its class
            raw = [a * b for a, b in zip(p, shares, strict=True)]
            drawn = [x / sum(raw) for x in raw]
    assert weighter.weights.min() >= gamma - 1e-12
    assert (np.ptp(weighter.weights.numpy()) > 0.01) == (gamma < 1)


def test_a_run_of_cfol_draws_and_moves_by_its_rule(small_npz, tmp_path, monkeypatch):
    """Through the real sampler: N·p_c samples of class c, up to rounding, and ln q_c grows by η·wrong_c/p_c."""
    with np.load(small_npz) as file:
        parts = {name: file[name] for name in file.files}
    few = (parts["y_train"] != 0) | (np.arange(len(parts["y_train"])) % 2 == 0)
    parts |= {name: parts[name][few] for name in ("x_train", "y_train")}
    np.savez(tmp_path / "uneven.npz", **parts)
    epochs, step = [], CFOL.step

    def recorded(self):
        correct, seen, _ = (total.numpy().astype(float) for total in self.totals())
        epochs.append((self.drawn.numpy().copy(), self.q.numpy().copy(), seen, seen - correct))
        step(self)

    monkeypatch.setattr(CFOL, "step", recorded)
    config = RunConfig(
        dataset=str(tmp_path / "uneven.npz"), method="cfol", gamma=0.1, eta=0.02, epochs=4, batch_size=16
    )
    run = train(config, runs=tmp_path, progress=False)
    sizes, weights, q = np.bincount(parts["y_train"]), run.wide("weight").to_numpy(), np.full(3, 1 / 3)
    for weight, (drawn, moved, seen, wrong) in zip(weights, epochs, strict=True):
        p = weight * sizes / (weight * sizes).sum()
        np.testing.assert_allclose(drawn, p, rtol=1e-9)
        assert (np.abs(seen - sizes.sum() * p) < 1 + 1e-9).all()
        q = q * np.exp(0.02 * wrong / p)
        q /= q.sum()
        np.testing.assert_allclose(moved, q, rtol=1e-5)
    assert np.ptp(weights[-1]) > 0.1, "something moved"


def test_an_epoch_of_cfol_moves_by_the_error_of_each_class():
    """With the step 1/N the sum over an epoch of balanced data is w_c = error of c, whatever the batches."""
    n, per_class = 4, 25
    y = torch.arange(n).repeat(per_class)
    logits = torch.nn.functional.one_hot(y, n).float()
    logits[torch.arange(len(y)) % 10 < y] *= -1  # wrong more often the higher the class
    error = [np.mean((logits.argmax(1) != y)[y == k].numpy()) for k in range(n)]
    weighter = build_method("cfol", None, n, sizes=[per_class] * n)
    for part in torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).split(7):
        weighter.observe(logits[part], y[part])
    assert weighter.weights.tolist() == pytest.approx([n * p for p in probabilities(error, 0.5)], rel=1e-6)
    assert np.ptp(error) > 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "CFOL needs a step size: give eta=, about 1/"),
        ({"eta": 0}, "eta=0: it must be a finite number above 0"),
        (
            {"eta": 0.1, "gamma": 0},
            "gamma=0: it must be a finite number above 0. At 0 a class may never be drawn again",
        ),
        ({"eta": 0.1, "gamma": 1.5}, "gamma=1.5 is not allowed"),
        ({"eta": 0.1, "acts_on": "images"}, "unknown acts_on 'images'"),
        ({"sizes": [1, 2]}, r"sizes has shape \(2,\), smallest 1: give a size for each of 5 classes"),
        ({"sizes": [1, 2, 0, 4, 5]}, "all at least 1"),
        ({"eta": 0.1, "sizes": [1, 2, 0, 4, 5]}, "all above 0"),
        ({"sizes": [0.2] * 5}, "smallest 0.2.*numbers of images, not shares"),  # η would be 1: one class in a batch
    ],
)
def test_bad_settings_of_cfol(options, message):
    with pytest.raises(ClamkitError, match=message):
        CFOL(5, **options)


# ------------------------------------------------------------- margins, and what the sizes of the classes say

SIZES = [500, 100, 50, 20, 5]


def with_margins(logits, y, margins):
    """−ln softmax(logits + margins)_y, mean over the batch."""
    return np.mean(cross_entropies(logits.double() + torch.tensor(margins, dtype=torch.float64), y.tolist()))


def test_tla_is_the_plain_loop():
    tla, prior = TLA(5, tau=1.5, alpha=0.2, sizes=SIZES), [size / 675 for size in SIZES]
    pi, rng = list(prior), np.random.default_rng(0)
    for seed in range(6):
        logits, y = batch(seed=seed)
        margins = [1.5 * (math.log(a) - math.log(b)) for a, b in zip(prior, pi, strict=True)]
        assert tla(logits.requires_grad_(), y).item() == pytest.approx(with_margins(logits, y, margins), rel=1e-5)
        assert tla.weights.tolist() == pytest.approx([5 * x for x in pi])
        v = rng.random(5)
        tla.step(accuracy=v)
        worst = v.tolist().index(min(v))  # a tenth of five classes is one
        pi = [(1 - 0.2) * x + 0.2 * (k == worst) for k, x in enumerate(pi)]


def test_tla_begins_as_plain_cross_entropy_and_asks_more_of_the_worst():
    for sizes in (None, SIZES):
        tla, (logits, y) = TLA(5, sizes=sizes), batch()
        plain = torch.nn.functional.cross_entropy(logits, y)
        assert tla.loss(logits, y).item() == pytest.approx(plain.item(), rel=1e-6)
        for _ in range(10):
            tla.step(accuracy=[0.9, 0.9, 0.1, 0.9, 0.9])
        each = torch.nn.functional.cross_entropy(logits, y, reduction="none")
        harder = torch.stack([tla.loss(row[None], label[None]) for row, label in zip(logits, y, strict=True)]) > each
        assert harder[y == 2].all()
        assert not harder[y != 2].any()


def test_what_is_counted_is_by_the_plain_logits():
    tla, la = TLA(5, sizes=SIZES), LogitAdjusted(5, sizes=SIZES)
    logits, y = batch()
    for weighter in (tla, la):
        weighter(logits.requires_grad_(), y)
        accuracy, loss = weighter.counted()
        right, each = logits.argmax(1) == y, torch.nn.functional.cross_entropy(logits, y, reduction="none")
        for k in range(5):
            assert accuracy[k] == pytest.approx(right[y == k].float().mean().item())
            assert loss[k] == pytest.approx(each[y == k].mean().item(), rel=1e-5)


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.25])
def test_logit_adjustment_is_its_formula(tau):
    weighter, (logits, y) = LogitAdjusted(5, tau, sizes=SIZES), batch()
    margins = [tau * math.log(size / sum(SIZES)) for size in SIZES]
    for _ in range(3):
        assert weighter.loss(logits, y).item() == pytest.approx(with_margins(logits, y, margins), rel=1e-5)
        weighter.step(accuracy=[0.1, 0.2, 0.3, 0.4, 0.5])
        assert weighter.weights.tolist() == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.9999])
def test_class_balanced_weights_are_their_formula(beta):
    effective = [sum(beta**i for i in range(size)) for size in SIZES]  # (1 − β^size)/(1 − β), term by term
    raw = [1 / number for number in effective]
    assert ClassBalanced(5, beta, sizes=SIZES).weights.tolist() == pytest.approx([5 * x / sum(raw) for x in raw])


@pytest.mark.parametrize("method", ["logit_adjusted", "class_balanced"])
def test_on_balanced_data_they_are_normal_and_on_other_data_not(method, small_npz):
    common = {"dataset": str(small_npz), "epochs": 2, "batch_size": 20}
    pd.testing.assert_frame_equal(
        train(RunConfig(**common, method=method)).history,
        train(RunConfig(**common, method="normal")).history,
        atol=1e-4,
    )
    x = dict(np.load(small_npz))
    keep = np.r_[0:60:3, 1:30:3, 2:9:3]  # 20, 10 and 3 images
    np.savez(small_npz, **(x | {"x_train": x["x_train"][keep], "y_train": x["y_train"][keep]}))
    settings = {"beta": 0.99} if method == "class_balanced" else {}
    other, normal = (train(RunConfig(**common, seed=1, method=m, **settings)) for m in (method, "normal"))
    assert not np.allclose(other.history["train_loss"], normal.history["train_loss"], atol=1e-4)
    if method == "class_balanced":
        raw = np.array([(1 - 0.99) / (1 - 0.99**size) for size in (20, 10, 3)])
        assert other.wide("weight").iloc[0].to_numpy() == pytest.approx(3 * raw / raw.sum())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LogitAdjusted(5), "sizes=None: give a size for each of 5 classes"),
        (lambda: ClassBalanced(5), "sizes=None"),
        (lambda: build_method("logit_adjusted", None, 5), "sizes=None"),
        (lambda: ClassBalanced(5, 1.0, sizes=SIZES), r"beta=1.0 is not allowed: it must lie in \[0, 1\)"),
        (lambda: ClassBalanced(5, -0.1, sizes=SIZES), "beta=-0.1"),
        (lambda: ClassBalanced(4, sizes=SIZES), r"sizes has shape \(5,\), smallest 5: give .* each of 4 classes"),
        (lambda: TLA(5, alpha=1), r"alpha=1 is not allowed: it must lie in \[0, 1\)"),
        (lambda: ClassBalanced(5, sizes=[0.1, 0.2, 0.2, 0.2, 0.3]), "numbers of images, not shares"),
        (lambda: TLA(5, tau=-1), "tau=-1"),
        (lambda: TLA(5, sizes=[1, 2, 3, 4, np.nan]), "all above 0"),
    ],
)
def test_bad_margins_and_sizes(build, message):
    with pytest.raises(ClamkitError, match=message):
        build()


# --------------------------------------------------------------------------------------------------- two ranks

BY_BATCH = {"group_dro": partial(GroupDRO, 5, 0.5), "cfol": partial(CFOL, 5, 0.5, 0.1)}


def test_every_rule_that_moves_every_batch_is_tried_on_two_ranks():
    assert set(BY_BATCH) == {name for name, method in METHODS.items() if method.every == "batch"}


def _rank(rank, port, name, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    weighter, losses = BY_BATCH[name](), []
    for seed in range(3):
        logits, y = (part[rank::2] for part in batch(size=7, seed=seed))  # 4 and 3 samples: shares are not equal
        loss = weighter(logits.requires_grad_(), y) * len(y) / 7
        losses.append(loss.item())
    results[rank] = weighter.weights.tolist(), losses
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_BATCH)
def test_two_ranks_move_as_one(name, two_ranks):
    results = two_ranks(_rank, name)
    (weights, losses), (other_weights, other_losses) = results[0], results[1]
    alone = BY_BATCH[name]()
    whole = [alone(logits.requires_grad_(), y).item() for logits, y in (batch(size=7, seed=seed) for seed in range(3))]
    assert weights == other_weights, "to the bit: ranks never part ways"
    assert weights == pytest.approx(alone.weights.tolist(), rel=1e-6)
    assert np.add(losses, other_losses) == pytest.approx(whole, rel=1e-5)
    assert np.ptp(weights) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_BATCH)
def test_a_training_on_two_processes_is_that_on_one(name, small_npz, tmp_path, two_ranks):
    """A network without batch statistics: exactly comparable."""
    fields = {"dataset": str(small_npz), "method": name, "model": "tiny_vit", "epochs": 2, "batch_size": 15, "lr": 0.05}
    config = RunConfig(**fields, eta=0.1)
    alone = train(config, runs=tmp_path / "alone")
    assert alone.history["weight"].std() > 0.001
    assert two_ranks(training_rank, config, tmp_path / "two") == {0: True, 1: True}
    together = RunStore(tmp_path / "two").run(config)
    np.testing.assert_allclose(together.history[list(COLUMNS)], alone.history[list(COLUMNS)], atol=1e-5)


# ------------------------------------------------------------------------------------- the table, and figures


def test_every_method_has_its_cell_in_the_table_of_games(root):
    text = (root / "docs" / "table_of_games.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    cells = {name.strip("`"): cell for name, *cell in rows}
    assert set(cells) == set(METHODS)
    for name, method in METHODS.items():
        _, looks_at, acts_on, how_often = cells[name]
        assert acts_on == {"nothing": "−"}.get(method.acts_on, method.acts_on), name
        assert how_often == method.every, name
        assert (looks_at in ("−", "sizes")) == (method.every == "never"), name


@pytest.mark.slow
def test_all_methods_fit_into_one_figure(memory_run):
    from clamkit import plots
    from clamkit.engine.store import as_frame

    runs = [
        memory_run(np.array([[0.5, 0.9 - i / 100]]), method=method, crop_lower_bound=bound)
        for i, method in enumerate(METHODS)
        for bound in (0.5, 1.0)
    ]
    (legend,) = plots.fairness_over_strength(as_frame(runs)).legends
    assert [text.get_text() for text in legend.get_texts()] == [method.label for method in METHODS.values()]
