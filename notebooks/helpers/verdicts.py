"""The verdicts of the analysis notebooks as sentences: the claim, the decision, effects with intervals, and seeds."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from clamkit.metrics import FEWEST, HIGHER_IS_BETTER, LEVEL, METRICS, by_seed, compare, decide, seed_interval
from clamkit.metrics.statistics import NO_DIFFERENCE, NOT_DECIDED, OPPOSITE, SUPPORTED

NOTHING = f"{NOT_DECIDED}, as no run has finished that could tell"

NAMES = {metric: metric for metric in METRICS} | {  # as they are called in a sentence
    "average": "average accuracy",
    "cov": "100 · COV",
    "range": "range (max − min)",
    "decile_range": "decile range",
    "worst": "the worst 10 %",
    "best": "the best 10 %",
}


def say(*sentences: str, width: int = 110, bullet: str = "") -> None:
    """Print each sentence as a paragraph, no wider than a page; a number keeps its percent sign.

    bullet: what all after the first begin with
    """
    for i, sentence in enumerate(sentences):
        before = bullet * (i > 0)
        kept = (before + sentence).replace(" %", "\N{NO-BREAK SPACE}%")
        lines = textwrap.fill(kept, width, subsequent_indent=" " * len(before), break_on_hyphens=False)
        print(lines.replace("\N{NO-BREAK SPACE}%", " %"))


def overall_verdict(table: pd.DataFrame, level: float = LEVEL) -> str:
    """The claim that a is better than b in every metric of a `compare` table, in one line."""
    seeds = int(table["n"].max())
    if not seeds:
        return str(table["verdict"].iloc[0])
    effect = table["mean_difference"]
    gain = effect.where(table.index.isin(HIGHER_IS_BETTER), -effect)
    rows = zip(gain > 0, table["p_holm"], table["p_equal"], strict=True)
    decided = pd.Series([decide(*row, level=level) for row in rows], index=table.index)
    toward = f"{int((gain > 0).sum())} of {len(table)} metrics point that way over {seeds} seed{'s' * (seeds > 1)}"
    if (decided == SUPPORTED).all():
        return f"{SUPPORTED}: {toward}, all significant"
    if (decided == OPPOSITE).any():
        return f"{OPPOSITE}: significantly worse in {', '.join(table.index[decided == OPPOSITE])}"
    if (decided == NOT_DECIDED).any():
        few = ", too few to tell" if seeds < FEWEST else f", {int((decided == SUPPORTED).sum())} significant"
        return f"{NOT_DECIDED}: {toward}{few}"
    gained = ", ".join(table.index[decided == SUPPORTED])
    better = f", significantly better in {gained}" if gained else ""
    return f"{NO_DIFFERENCE} that matters in {', '.join(table.index[decided == NO_DIFFERENCE])}: {toward}{better}"


def verdict(claim: str, table: pd.DataFrame, names: Mapping[str, str] = NAMES, digits: int = 1) -> str:
    """A claim (a is better than b), what `overall_verdict` says to it, and the effects, in points.

    table: of `metrics.compare`
    """
    said = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), overall_verdict(table))
    word, _, why = said.partition(": ")
    if not table["n"].max():
        return f"{claim}: {word}, as {why}."
    if len(table) == 1:
        return f"{claim}: {word}. {effects(table, names, digits)}."
    return f"{claim}: {word} ({why}). {effects(table, names, digits)}."


def about(
    claim: str, values: pd.Series, what: str, bound: float = 0, digits: int = 2, unit: str = "", above: bool = False
) -> str:
    """A claim that a number of each setting lies below a bound (or `above` it), decided over the seeds."""
    values = values.dropna().astype(float)
    if values.empty:
        return f"{claim}: {NOTHING}."
    beyond = (bound - values if above else values - bound).rename("value")
    word = overall_verdict(compare(beyond, 0 * beyond, margin=0.0)).partition(":")[0]  # no size of it is "none"
    return f"{claim}: {word}. {what} {estimate(values, digits, unit)}."


def throughout(claim: str, table: pd.DataFrame, what: str) -> str:
    """A claim that something is lower in every row of a table; its rows are epochs."""
    named = table.rename(index="epoch {}".format)
    word, _, why = overall_verdict(named).replace("metrics", "epochs").partition(": ")
    lower, higher = int((table["ci_high"] < 0).sum()), int((table["ci_low"] > 0).sum())
    surely = f"The 95 % interval of the difference lies below 0 in {lower} of {len(table)} epochs and above in {higher}"
    last = f"the last epoch's {what}"
    return f"{claim}: {word} ({why}). {surely}. {effects(named.tail(1), {named.index[-1]: last})}."


def ranks(name: str, table: pd.DataFrame, worst: int = 5) -> str:
    """The claim that a method raises almost all (all but one) of the worst ranks; rows are ranks, from the worst."""
    rows = table.head(worst)
    words = [decide(row.mean_difference > 0, row.p_holm, row.p_equal) for row in rows.itertuples()]
    raised, lowered = words.count(SUPPORTED), words.count(OPPOSITE)
    word = SUPPORTED if raised >= len(rows) - 1 else OPPOSITE if lowered > raised else NOT_DECIDED
    counts = f"{raised} of the {len(rows)} worst ranks are surely raised and {lowered} surely lowered"
    ends = effects(rows.iloc[[0, -1]], {rows.index[0]: "the worst class", rows.index[-1]: f"the {len(rows)}th worst"})
    return f"{name} raises almost all of the worst classes: {word} ({counts}). {ends}."


def each(claim: str, tables: Mapping[str, pd.DataFrame], metric: str = "std", join: str = "at") -> str:
    """A claim on several settings (name → table), each decided by all its metrics; the effect told is that of one."""
    words = {setting: overall_verdict(table).partition(":")[0] for setting, table in tables.items() if table["n"].max()}
    if not words:
        return f"{claim}: {NOTHING}."
    groups = {word: [setting for setting, own in words.items() if own == word] for word in words.values()}
    whole = next(iter(groups)) if len(groups) == 1 else OPPOSITE if OPPOSITE in groups else NOT_DECIDED
    parts = [f"{word} {join} {listed(settings)}" for word, settings in groups.items()]
    told = pd.concat({setting: tables[setting].loc[metric] for setting in words}, axis=1).T
    effect = effects(told, join=f" {join} ").replace("difference", f"difference in {NAMES.get(metric, metric)}", 1)
    return f"{claim}: {whole} ({'; '.join(parts)}). {effect}."


def effects(table: pd.DataFrame, names: Mapping[str, str] = NAMES, digits: int = 1, join: str = " in ") -> str:
    """The mean differences of a `metrics.compare` table and their intervals, as a clause; in points."""
    parts = []
    for i, (metric, row) in enumerate(table.iterrows()):
        middle, low, high = (number(100 * row[c], digits, True) for c in ("mean_difference", "ci_low", "ci_high"))
        interval = f" ({'95 % interval ' * (not i)}{low} to {high})" if row["n"] > 1 else ""
        parts.append(f"{middle}{' points' * (not i)}{join}{names.get(metric, metric)}{interval}")
    start = f"Over {int(table['n'].max())} seeds" if table["n"].max() > 1 else "In the one seed that has run"
    return f"{start} the mean difference is {listed(parts)}"


def cost(table: pd.DataFrame) -> str:
    """What the row `average` of a `metrics.compare` table says of the price, against one point."""
    row = table.loc["average"]
    if row["n"] < FEWEST:
        return f"What it costs in average accuracy is not decided: fewer than {FEWEST} seeds have run."
    middle, low, high = (-100 * row[column] for column in ("mean_difference", "ci_high", "ci_low"))
    which = "surely more than" if low > 1 else "surely less than" if high < 1 else "which may be more or less than"
    interval = f"95 % interval {number(low, 1)} to {number(high, 1)} over {int(row['n'])} seeds"
    return f"It costs {number(middle, 1)} points of average accuracy ({interval}), {which} one point."


def estimate(values: pd.Series, digits: int = 2, unit: str = "") -> str:
    """The mean of a number over the seeds with its interval: values by setting, with a level `seed`."""
    seeds = by_seed(values.dropna().astype(float))
    if not len(seeds):
        return "unknown (no run has finished)"
    low, high = (number(end, digits) for end in seed_interval(seeds))
    over = f"95 % interval {low} to {high} over {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    return f"{number(seeds.mean(), digits)}{unit} ({over})"


def number(value: float, digits: int, sign: bool = False) -> str:
    """With a true minus sign; no zero has one."""
    value = round(float(value), digits) + 0.0 if np.isfinite(value) else value
    return f"{value:{'+' * sign}.{digits}f}".replace("-", "−")


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
