"""Every update rule once more, as plain loops over the classes: what `clamkit.theory.update` is compared with.

Distributions sum to 1; v are class accuracies, losses class losses.
"""

import math


def divided_by_sum(x):
    return [xi / sum(x) for xi in x]


def hedge(w, v, tau=1.0):
    """w·exp(−τv)/Z, in logarithms."""
    logs = [math.log(wi) - tau * vi if wi > 0 else -math.inf for wi, vi in zip(w, v, strict=True)]
    return divided_by_sum([math.exp(log - max(logs)) for log in logs])


def euclidean(x, floor):
    """max(x − θ, floor), by bisection for the shift θ with which it sums to 1."""
    low, high = -10.0, 10.0
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if sum(max(xi - theta, floor) for xi in x) > 1 else (low, theta)
    return [max(xi - theta, floor) for xi in x]


def kl(x, floor):
    """max(c·x, floor), by bisection for the scale c with which it sums to 1."""
    low, high = 0.0, 1e6
    for _ in range(300):
        c = (low + high) / 2
        low, high = (c, high) if sum(max(c * xi, floor) for xi in x) < 1 else (low, c)
    return [max(c * xi, floor) for xi in x]


def clip(x, floor):
    """The map of the paper's proof."""
    return divided_by_sum([max(xi, floor) for xi in x])


def released(x, floor=None):
    """The released code's: at mean 1, clip to [½, 2], divide by the sum."""
    return divided_by_sum([min(max(len(x) * xi, 0.5), 2.0) for xi in x])


MAPS = {"euclidean": euclidean, "kl": kl, "clip": clip, "released": released}


def clam(w, v, floor, tau=1.0, projection="euclidean"):
    return MAPS[projection](hedge(w, v, tau), floor)


def tilted(w, losses, gamma):
    total = sum(math.exp(loss) for loss in losses)
    return [(1 - gamma) * wi + gamma * math.exp(loss) / total for wi, loss in zip(w, losses, strict=True)]


def gini(badness, alpha, w_min):
    """Rank 1 is the worst; equals take the mean over all the orders in which they could stand."""
    raw = []
    for bad in badness:
        before, equal = sum(other > bad for other in badness), sum(other == bad for other in badness)
        raw.append(sum(max(alpha**rank, w_min) for rank in range(before, before + equal)) / equal)
    return divided_by_sum(raw)


def star_adapted(w, losses, alpha, k):
    """At mean 1: w·α, the worst tenth + (1 − α)·n/(kK); clip to [½, 2]. For losses without ties."""
    n = len(w)
    tail = max(1, (n + 5) // 10)
    threshold = sorted(losses, reverse=True)[tail - 1]
    gain = n / tail / k * (1 - alpha)
    x = [n * wi * alpha + (gain if loss >= threshold else 0) for wi, loss in zip(w, losses, strict=True)]
    return divided_by_sum([min(max(xi, 0.5), 2.0) for xi in x])


def star_original(w, losses, alpha, k, best):
    """μ ← (αμ + (1 − α)/(K·|mask|)·mask)·K/((K − 1)α + 1), Martinez et al."""
    mask = [loss >= best for loss in losses]
    x = [alpha * wi + (1 - alpha) / (k * sum(mask)) * chosen for wi, chosen in zip(w, mask, strict=True)]
    return [xi * k / ((k - 1) * alpha + 1) for xi in x]


def toward_worst(w, v, alpha):
    """π + α·(uniform on the worst tenth − π), Choi & Seo. For accuracies without ties."""
    tail = max(1, round(0.1 * len(w)))
    worst = sorted(v)[:tail]
    return [wi + alpha * ((1 / tail if vi in worst else 0) - wi) for wi, vi in zip(w, v, strict=True)]
