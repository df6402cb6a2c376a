"""Notebook 03, claim by claim: each function computes numbers and checks what the text says of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import rel_entr

from clamkit import paths
from clamkit.theory import game
from clamkit.theory.game import Play
from clamkit.theory.sets import Box, LowerBounded
from clamkit.theory.update import clip_renormalise
from helpers import players

BOUNDS = {
    "stated bound, α = 1": lambda n, T: players.stated_bound(n, T, 1),
    "corrected bound (KL, clip)": lambda n, T: float(np.sqrt(constrained(n).kl_diameter() / (2 * T))),
}
TRAPS = (
    (3, 10_000, 500, 0.99),
    (10, 300, 60, 0.99),
    (10, 1000, 100, 0.95),
    (100, 10_000, 500, 0.99),
)  # n, T, K, a/limit


def constrained(n: int) -> LowerBounded:
    """The paper's set: w ≥ 1/(2n)."""
    return LowerBounded(n, 0.5 / n)


def check(holds: object, what: str) -> None:
    """Stop the notebook where the text would say something untrue."""
    if not np.all(holds):
        raise AssertionError(f"this does not hold: {what}")


def four_maps() -> pd.DataFrame:
    """Where each map takes one point; the proof's does not land in the set, and repeated becomes the KL projection."""
    x, S = np.array([0.70, 0.25, 0.05]), LowerBounded(3, 1 / 6)
    maps = {
        "Euclidean projection (the text)": S.project(x, "euclidean"),
        "KL projection": S.project(x, "kl"),
        "max(x, u)/Z (the proof)": clip_renormalise(x, 1 / 6),
        "clip to [½, 2]/n, renormalise (the code)": clip_renormalise(x, 0.5 / 3, 2 / 3),
    }
    inside = {name: S.contains(w) for name, w in maps.items()}
    check(list(inside.values()) == [True, True, False, False], "only the two projections land in the set")
    for _ in range(200):
        x = clip_renormalise(x, 1 / 6)
    check(np.allclose(x, maps["KL projection"]), "repeated, the proof's map becomes the KL projection")
    table = pd.DataFrame(maps, ["w₁", "w₂", "w₃"]).T.round(3)
    return table.assign(**{"in the set": [{True: "yes", False: "no"}[value] for value in inside.values()]})


def failing_steps() -> pd.DataFrame:
    """Two inequalities of the proof of Theorem 1 with numbers for which they fail, and the first with KL."""
    w, v, tau = np.array([0.06, 0.54, *[0.05] * 8]), np.array([0, 0, *[1.0] * 8]), 0.2
    S, best = LowerBounded(10, 0.05), np.array([0.55, *[0.05] * 9])
    x = w * np.exp(-tau * v) / (w * np.exp(-tau * v)).sum()

    def further(after: np.ndarray) -> float:
        """KL(w̃‖w′) − KL(w̃‖x)."""
        return float(rel_entr(best, after).sum() - rel_entr(best, x).sum())

    euclidean = S.project(x, "euclidean")
    rows = {
        "first inequality, Euclidean": (further(euclidean), tau * (best * v)[euclidean > x].sum()),
        "the same, KL (at most 0)": (further(S.project(x, "kl")), 0.0),
    }
    w, v, tau = np.array([1 / 6, 1 / 6, 2 / 3]), np.array([1, 1, 0.0]), 0.5
    x = w * np.exp(-tau * v) / (w * np.exp(-tau * v)).sum()
    rows["bound on Z"] = (np.maximum(x, 1 / 6).sum(), np.exp(tau * v.min()))
    table = pd.DataFrame(rows, ["left side", "at most"]).T
    holds = table["left side"] <= table["at most"]
    check(list(holds) == [False, True, False], "both steps fail, and the first holds with KL")
    return table.round(4).assign(holds=holds.map({True: "yes", False: "no"}))


def traps() -> pd.DataFrame:
    """Regret on the trap with τ of Theorem 1: above the stated bound for the Euclidean projection, small for KL."""
    rows = []
    for n, T, K, share in TRAPS:
        S, a = constrained(n), share * players.trap_limit(n)
        v = players.trap_sequence(n, T, K, a)
        assumed, measured = players.self_consistent_alpha(v, S)
        trapped = game.regret(game.play(v, S, players.tau_paper(n, T, assumed)))
        by_kl = game.regret(game.play(v, S, players.tau_paper(n, T, measured), "kl"))
        rows.append((n, T, K, a, measured, trapped, players.stated_bound(n, T, assumed), by_kl))
    table = pd.DataFrame(rows, columns=["n", "T", "K", "a", "α", "regret, Euclidean", "stated bound", "regret, KL"])
    check(table["regret, Euclidean"] > table["stated bound"], "the Euclidean regret breaks the stated bound")
    check(table["regret, KL"] < table["stated bound"] / 2, "the KL regret is far below it")
    return table.round(4)


def trap_paths() -> dict[str, Play]:
    """The trap with three classes: Euclidean iterates end on the class that got better, KL on the one that fails."""
    v = players.trap_sequence(3, 2000, 200, 0.9 * players.trap_limit(3))
    plays = {
        "Euclidean": game.play(v, constrained(3), 0.03, "euclidean"),
        "KL": game.play(v, constrained(3), 0.03, "kl"),
    }
    ends = [played.weights[-1].argmax() for played in plays.values()]
    check(ends == [1, 0], "the Euclidean iterates stay with class 2, those of KL go to class 1")
    return plays


def small_floor() -> pd.Series:
    """n = 2, u_min = 0.001: nothing is clipped, and the stated bound fails by the term that the proof drops."""
    S, T = LowerBounded(2, 1e-3), 300
    played = game.play(players.alternating_sequence(2, T, 88), S, players.tau_paper(2, T, 0), "kl")
    found, stated = game.regret(played), players.stated_bound(2, T, 0)
    dropped = 0.5 * np.sqrt(np.log(2) / T) * S.value(played.payoffs.mean(axis=0))
    check(stated < found <= stated + dropped, "above the stated bound, within it plus the dropped term")
    return pd.Series({"regret": found, "stated bound": stated, "with the dropped term": stated + dropped}).round(6)


def diameters() -> pd.DataFrame:
    """D of the corrected theorem for u_min = 1/(2n), and its step size for 100 rounds."""
    sizes = (2, 3, 10, 100)
    D = pd.Series({n: constrained(n).kl_diameter() for n in sizes})
    check(D <= 7 / 8 * np.log(sizes), "so the paper's bound follows for KL and clip at these n, for any α")
    columns = {"D": D, "ln n": np.log(sizes), "τ for T = 100": [game.tau_kl(n, 100) for n in sizes]}
    return pd.DataFrame(columns).rename_axis("n").round(3)


def suite_regrets() -> pd.DataFrame:
    """Regret of every map on every sequence of the suite; only the Euclidean projection on the trap breaks a bound."""
    rows = []
    for n, T in [(n, T) for n in (3, 10) for T in (50, 150, 500, 1500, 4000)]:
        for projection in ("euclidean", "released", "kl", "clip"):
            tau = game.tau_kl(n, T) if projection in ("kl", "clip") else players.tau_paper(n, T, 1)
            against = Box(n, 0.5 / n, 2 / n) if projection == "released" else constrained(n)
            for name, v in players.suite(n, T).items():
                regret = game.regret(game.play(v, constrained(n), tau, projection), against)
                rows.append((n, T, projection, name, regret))
    found = pd.DataFrame(rows, columns=["n", "T", "projection", "sequence", "regret"])
    stated, corrected = (
        [bound(n, T) for n, T in zip(found["n"], found["T"], strict=True)] for bound in BOUNDS.values()
    )
    ours = found["projection"].isin(["kl", "clip"])
    check((found["regret"] <= np.array(corrected) + 1e-12)[ours], "KL and clip stay within the corrected bound")
    broken = found[found["regret"] > stated]
    check(set(zip(broken["projection"], broken["sequence"], strict=True)) == {("euclidean", "trap")}, "only the trap")
    return found.assign(above=found["regret"] > stated)


def tightness() -> pd.DataFrame:
    """How near a sequence comes to the corrected bound, 1,000 rounds."""
    rows = {}
    for n, push in ((10, 2.5), (100, 4.7)):
        tau = game.tau_kl(n, 1000)
        v = players.alternating_sequence(n, 1000, int(push / tau))
        reached = game.regret(game.play(v, constrained(n), tau, "kl"))
        rows[n] = (reached, game.corrected_bound(constrained(n), tau, 1000))
    table = pd.DataFrame(rows, ["regret", "corrected bound"]).T.rename_axis("n")
    share = table["regret"] / table["corrected bound"]
    check((share > 0.98) & (share <= 1), "98 to 100 % of the bound are reached")
    return table.round(5).assign(share=share.map("{:.1%}".format))


def last_rounds() -> tuple[dict[str, Play], dict[str, float]]:
    """Three plays whose last loss does not go where the lemma says, and the limits that it claims."""
    S = constrained(3)
    swing, half = np.tile([[1.0] * 3, [0.0] * 3], (40, 1)), np.tile([[0, 1, 1], [0, 0.5, 0.5]], (40, 1))
    settles = np.array([[1.0, 0, 1]] * 60 + [[0, 0.2, 1]] * 400)
    a, b, c = "A: all classes swing together", "B: weights fixed, v swings", "C: Euclidean, v converges"
    plays = {a: game.play(swing, S, 0.5, "kl"), b: game.play(half, S, 0.5, "kl"), c: game.play(settles, S, 0.1)}
    limits = {name: S.value(played.payoffs.mean(axis=0)) for name, played in plays.items()}
    limits[c] = S.value([0, 0.2, 1])
    check(np.allclose(plays[a].weights, 1 / 3) and np.allclose(plays[a].losses[-2:], [1, 0]), "A swings from 1 to 0")
    check(np.allclose(plays[b].losses[-2:], [1 / 3, 1 / 6]) and np.isclose(limits[b], 1 / 4), "B swings around ¼")
    check(np.abs(np.diff(plays[b].weights[-9:], axis=0)) < 1e-12, "B's weights rest while its loss moves")
    check(np.isclose(plays[c].losses[-1], 0.3) and np.isclose(limits[c], 0.2), "C stays at 0.3 instead of 0.2")
    return plays, limits


def corrected_lemma() -> pd.DataFrame:
    """Where the last round does go: accuracies that converge, and a max player that answers best."""
    target = np.array([0.6, 0.8, 0.9, 0.95])
    v = target * (1 - 0.5 ** np.arange(1, 2001))[:, None]
    converging, limit = game.play(v, constrained(4), 0.1, "kl"), constrained(4).value(target)
    check(np.isclose(converging.losses[-1], limit, atol=1e-5), "the last loss is f(v*)")
    M = np.array([[0.9, 0.2, 0.5], [0.1, 0.8, 0.6], [0.6, 0.7, 0.2]])  # a class in each row, an answer in each column
    best = game.play(players.best_response(M), constrained(3), 0.01, "kl", T=3000)
    value = game.equilibrium(M, constrained(3)).value
    moved, jumped = np.abs(np.diff(best.weights[:-1], axis=0)).sum(1), np.abs(np.diff(best.losses))
    changes = [int((np.diff(one.payoffs[-1000:], axis=0) != 0).any(1).sum()) for one in (converging, best)]
    check(changes[1] > 300, "the best answers never stop changing")
    check(jumped <= moved + 1e-12, "the loss moves no further than the weights")
    check(np.abs(best.losses[-1000:] - value) < 0.002, "and stays at the value of the game")
    rows = {
        "Algorithm 2, accuracies converge": (converging.losses[-1], limit, changes[0]),
        "Algorithm 1, best answers": (best.losses[-1], value, changes[1]),
    }
    columns = ["last loss", "limit of the lemma", "answers changed in the last 1000 rounds"]
    return pd.DataFrame(rows, columns).T.round(3).astype({columns[2]: int})


def measured_alphas() -> dict[tuple[str, float], np.ndarray]:
    """α_t of the demo's CLAM runs by (method, crop): their accuracies, replayed, give back the recorded weights."""
    history = pd.read_csv(paths.embedded() / "results" / "demo_history.csv")
    alphas = {}
    for method, projection in (("clam", "euclidean"), ("clam_kl", "kl")):
        for crop, rows in history[history["method"] == method].groupby("strength"):
            v, weights = (
                rows.pivot(index="epoch", columns="class", values=column).to_numpy()
                for column in ("train_accuracy", "weight")
            )
            played = game.play(v, constrained(10), 1.0, projection)
            check(np.allclose(10 * played.weights[:-1], weights, atol=1e-9), "the replay is the run")
            alphas[method, crop] = players.alpha_t(played)
    check(min(alpha.max() for alpha in alphas.values()) > players.ALPHA_ASSUMED, "above what the paper assumes")
    return alphas


def step_sizes(alpha: float) -> pd.DataFrame:
    """τ of Theorem 1 with the assumed and with a measured α, and that of the corrected theorem, which needs none."""
    rows = {}
    for name, (n, T) in {"CIFAR-100": (100, 150), "Fashion-MNIST": (10, 50)}.items():
        rows[name] = [players.tau_paper(n, T, a) for a in (players.ALPHA_ASSUMED, alpha)] + [game.tau_kl(n, T)]
    columns = [f"α = {players.ALPHA_ASSUMED:g}, assumed", f"α = {alpha:.2f}, measured", "corrected, no α"]
    table = pd.DataFrame(rows, columns).T
    check(np.round(table[columns[0]], 2) == [0.15, 0.18], "the paper's τ of 0.15 and 0.18")
    return table.round(3)
