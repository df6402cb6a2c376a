"""What next? In the order of cost: more test images, a look at confused pairs, class biases, training."""

from __future__ import annotations

import numpy as np

from clamkit.apps.diagnose import Diagnosis, Model
from clamkit.apps.fix import Fix, fix
from clamkit.apps.predictions import Predictions
from clamkit.apps.words import percent, points
from clamkit.errors import ClamkitError

NOISE = 0.5  # of the variance over classes: from here on the test set is what must be mended first
NOISE_WANTED = 0.1
EVEN = 0.02  # a std over classes that nobody needs to mend
UNSURE = 0.05  # nor is it known to be even while it may be above this
FEW_PAIRS, MUCH = 5, 1 / 3  # so many pairs that make this share of all errors are worth a look
QUICK = 2_000_000  # scores: with more, biases are tried by `clamkit fix` alone
MANY_CLASSES = 50  # from here on what was seen on CIFAR-100 is nearer than what was seen with ten classes


def advice(result: Diagnosis, model: Predictions | None = None, fixed: Fix | None = None) -> list[str]:
    """Lines of advice on the last model of a diagnosis, each with the number that it rests on."""
    examined = result.models[-1]
    metrics = examined.fairness["value"]
    chance, at_most = metrics["sampling_std"], examined.fairness.loc["std", "high"]
    real = max(0.0, metrics["std"] ** 2 - chance**2) ** 0.5
    n = len(examined.classes)
    if n * metrics["average"] + 3 * (1 / examined.classes["images"]).mean() ** 0.5 < 1:  # 3 std below guessing, 1/n
        low = f"they average {percent(metrics['average'])}, and guessing at random gives {percent(1 / n)}"
        return [f"Check first that labels and predictions use the same numbers for the classes: {low}."]
    if at_most > UNSURE if real < EVEN else metrics["noise"] >= NOISE:
        return [_more_images(examined, real)]
    lines = _pairs(examined)
    if real < EVEN:
        even = f"without sampling noise the std over them is {percent(real)}, at most {percent(at_most)} (95 % sure)"
        return [*lines, f"The classes are even: {even}. Leave it."]
    worst, left = percent(metrics["worst"]), "to bring down"
    untried = f"Try class biases (no training) on the worst 10 % of {worst}: `clamkit fix` on held-out logits."
    if fixed is None and model is not None and model.scores is not None and model.scores.size <= QUICK:
        try:
            fixed = fix(model)
        except ClamkitError as error:  # a class with hardly any images, a run without held-out ones
            untried = f"Class biases, which need no training, cannot be tried yet: {error}"
    if fixed is not None:
        change = fixed.metrics["with"] - fixed.metrics["without"]
        moved = f"the worst 10 % by {points(change['worst'])} points and the average by {points(change['average'])}"
        if fixed.classes["images"].nunique() > 1:
            moved += f" (weighted by images {points(np.diff(fixed.right)[0])})"
        unseen = "on images they were not fitted on"
        if fixed.useful:
            lines.append(f"Use class biases: without training they move {moved}, {unseen} (`clamkit fix`).")
            real, left = max(0.0, fixed.classes["with"].var() - chance**2) ** 0.5, "left after the biases"
            if real < EVEN:
                return lines
        else:
            none, why = not fixed.biases.values.any(), fixed.biases.choice.lower().rstrip(".")
            verdict = "are not needed" if none and fixed.target else "do not help here"
            lines.append(f"Class biases {verdict}: {why if none else f'{unseen} they move {moved}'}.")
    elif model is None or model.scores is None:
        lines.append(
            f"Save the logits too: `clamkit fix logits.npz` then says whether class biases, which need no training, "
            f"lift the worst 10 % from {worst}."
        )
    else:
        lines.append(untried)
    seen = "with ten classes τ = 0.1 brought the worst tenth 5 to 10 points at no measured cost"
    if n >= MANY_CLASSES:
        seen = "with 100 classes τ = 0.1 (`--method clam`) brought the worst tenth 2 points for 0.3 of average "
        seen += "(`tce`: 4 for 1.3)"
    then = "train with CLAM, gently: `clamkit train --method clam_kl --tau 0.1 --dataset …`; in our runs of small "
    then += f"networks {seen}"
    if model is not None and model.method not in ("", "normal"):
        then = f"try other settings of {model.method} by held-out images (`clamkit sweep GRID --select all`)"
    lines.append(f"If that is not enough, {then}. The std {left} is {percent(real)}, sampling noise taken out.")
    return lines


def _more_images(model: Model, real: float) -> str:
    """How many test images of a class would bring the std by chance down to a part of the real one."""
    images, noise = model.classes["images"], model.fairness.loc["noise", "value"]
    per_class = " to ".join(f"{size:,}" for size in sorted({images.min(), images.max()}))
    per_class += " image of a class" if images.max() == 1 else " images of a class"
    why = f"by {per_class} the std over them may be up to {percent(model.fairness.loc['std', 'high'])}"
    if noise >= NOISE:
        why = f"{percent(noise, 0)} of the variance over classes is what {per_class} give by chance"
    smooth = (model.classes["right"] + 0.5) / (images + 1)  # no class is taken to be perfect
    wanted = max(real * (NOISE_WANTED / (1 - NOISE_WANTED)) ** 0.5, 0.01)
    needed = int(np.ceil((smooth * (1 - smooth)).mean() / wanted**2 / 10) * 10)
    return (
        f"Collect more test images first: {why}. About {needed:,} of each would bring that chance to "
        f"{percent(wanted)} of accuracy. Until then do not act on single classes."
    )


def _pairs(model: Model) -> list[str]:
    """A few pairs that make much of all errors, if there are such; a pair is one whichever way it is confused."""
    count = model.confused["count"]
    if count.empty:
        return []
    sums = count.groupby([" / ".join(sorted(pair)) for pair in count.index]).sum()
    sums = sums.sort_values(ascending=False, kind="stable")
    possible = len(model.classes) * (len(model.classes) - 1) / 2
    needed = int((sums.cumsum() / sums.sum() < MUCH).sum()) + 1
    if needed > min(FEW_PAIRS, possible / 10):
        return []
    part = sums.iloc[:needed].sum() / sums.sum()
    which, make = ", ".join(map(str, sums.index[:needed])), "this pair makes" if needed == 1 else "these pairs make"
    return [
        f"Look at images of {which}: {make} {percent(part, 0)} of all errors. Are the labels right, is there one class "
        "too many?"
    ]
