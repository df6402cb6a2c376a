"""The game of docs/game/game.js played by clamkit.theory: random settings, and every number the page shows of them."""

import numpy as np
from scipy.special import rel_entr

from clamkit.theory import game, update
from clamkit.theory.sets import LowerBounded
from helpers import players
from helpers.game_explorer import PLAYERS

NETWORKS = (*PLAYERS, "trap")
NUDGE, STABLE = 1e-14, 1e-11


def random_settings(count: int, seed: int, most_classes: int = 3) -> list[dict]:
    """Every network with every projection in turn; each second game starts from weights that are not equal."""
    rng, found = np.random.default_rng(seed), []
    for i in range(count):
        n = int(rng.integers(3, most_classes + 1))
        share = float(rng.integers(0, 20) / 20)
        start = np.full(n, 1 / n) if i % 2 else share / n + (1 - share) * rng.dirichlet(np.full(n, 2.0))
        found.append(
            {
                "accuracies": rng.uniform(0.02, 0.98, n).round(2).tolist(),
                "network": NETWORKS[i % len(NETWORKS)],
                "tau": float(10 ** rng.uniform(-2, 1)),
                "share": share,
                "projection": game.PROJECTIONS[i // len(NETWORKS) % len(game.PROJECTIONS)],
                "rounds": int(rng.integers(20, 120)),
                "start": start.tolist(),
            }
        )
    return found


def set_of(chosen: dict) -> LowerBounded:
    n = len(chosen["accuracies"])
    return LowerBounded(n, chosen["share"] / n)


def max_player(chosen: dict):
    """What the page calls the network, as `game.play` takes it."""
    v, T = np.array(chosen["accuracies"]), chosen["rounds"]
    return players.suite(len(v), T)["trap"] if chosen["network"] == "trap" else PLAYERS[chosen["network"]](v, T)


def next_weights(w, v, chosen: dict) -> np.ndarray:
    S, projection = set_of(chosen), chosen["projection"]
    return S.argmin(v) if projection == "best_response" else update.clam(w, v, S, chosen["tau"], projection)


def theory(chosen: dict, nudge: float = 0.0) -> dict[str, np.ndarray]:
    """The numbers of each round, from any start; `nudge` moves the start by so little."""
    given, S, T = max_player(chosen), set_of(chosen), chosen["rounds"]
    given = given.start() if hasattr(given, "start") else given
    w, weights, payoffs = np.array(chosen["start"]) * (1 + nudge * np.arange(S.n)), [], []
    for t in range(T):
        weights.append(w)
        payoffs.append(given(w) if callable(given) else given[t])
        w = next_weights(w, payoffs[-1], chosen)
    rounds = np.arange(1, T + 1)
    loss, average = (np.array(weights) * payoffs).sum(1), np.cumsum(payoffs, axis=0) / rounds[:, None]
    mean, best = np.cumsum(loss) / rounds, np.array([S.value(v) for v in average])
    corners = np.full((S.n, S.n), S.u_min) + (1 - S.n * S.u_min) * np.eye(S.n)
    D = rel_entr(corners, chosen["start"]).sum(1).max()
    found = {"w": np.array(weights), "v": np.array(payoffs), "loss": loss, "mean": mean, "best": best}
    return found | {"regret": mean - best, "bound": D / (chosen["tau"] * rounds) + chosen["tau"] / 8, "last": w}


def stable(chosen: dict, exact: dict[str, np.ndarray]) -> bool:
    """Whether a start that is off by rounding ends in the same game. With a large τ some games are chaotic."""
    moved = theory(chosen, NUDGE)
    return all(np.abs(exact[name] - moved[name]).max() < STABLE for name in ("w", "v"))


def assert_same(chosen: dict, found: dict) -> bool:
    """What game.js found is what the theory says, within 1e-9; whether the game was compared as a whole.

    Each step is, from the same w and v, and the whole game where rounding does not grow.
    """
    exact, at = theory(chosen), {name: np.array([row[name] for row in found["played"]]) for name in found["played"][0]}
    after = [*at["w"][1:], found["last"]]
    for w, v, following in zip(at["w"], at["v"], after, strict=True):
        np.testing.assert_allclose(following, next_weights(w, v, chosen), rtol=0, atol=1e-9, err_msg=str(chosen))
    if not stable(chosen, exact):
        return False
    for name in ("w", "v", "loss", "mean", "best", "regret", "bound"):
        np.testing.assert_allclose(at[name], exact[name], rtol=0, atol=1e-9, err_msg=f"{name} of {chosen}")
    np.testing.assert_allclose(found["last"], exact["last"], rtol=0, atol=1e-9)
    return True
