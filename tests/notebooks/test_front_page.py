"""The numbers of README.md, docs/start.md and docs/findings.md are those of the committed results."""

import re
from base64 import b64decode
from statistics import fmean

import nbformat
import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from clamkit import RunStore
from clamkit.lab import results
from clamkit.lab.grids import Grid
from helpers import claims, front_page
from helpers.front_page import BLOCK, PAGES, written


@pytest.fixture(scope="module")
def blocks(tmp_path_factory) -> dict[str, str]:
    store = RunStore(tmp_path_factory.mktemp("runs"))
    return front_page.blocks_of(lambda grid: results.runs_of(grid, Grid.load(grid).configs(), store))


@pytest.mark.slow
def test_the_pages_say_what_the_committed_results_say(root, blocks):
    used = set()
    for page in PAGES:
        text = (root / page).read_text(encoding="utf-8")
        used |= {name for _, name, _ in BLOCK.findall(text)}
        assert written(text, blocks) == text, "python notebooks/refresh.py 05_what_we_found"
    assert used == set(blocks), "every block stands on a page"


@pytest.mark.slow
def test_numbers_of_the_five_rows_from_the_files_alone(root, blocks):
    """The first effect of the first row, and what the best tenth of CIFAR-100 pays and how sure, by other code."""
    rows = pd.read_csv(root / "data" / "results" / "small_embedded.csv")
    rows = rows[(rows["tau"] == 1) & rows["accuracy_from"].isna() & (rows["acts_on"] == "loss")]
    std = rows.pivot_table("std", ["seed", "crop_lower_bound"], "method")
    effect = 100 * fmean((std["clam"] - std["normal"]).groupby("seed").mean())
    said = blocks["five"].replace("−", "-").splitlines()
    assert float(re.search(r"std ([+-][\d.]+)", said[2])[1]) == pytest.approx(effect, abs=0.051)
    short = blocks["in_short"].replace("−", "-")
    change = re.search(r"small networks on a part of Fashion-MNIST \(\d+ seeds\): .* \(std\) ([+-][\d.]+)", short)
    assert float(change[1]) == pytest.approx(effect, abs=0.051)
    rows = pd.read_csv(root / "data" / "results" / "mini_crop.csv", low_memory=False)
    std = rows.pivot_table("std", ["seed", "crop_lower_bound"], "method")
    effect = 100 * fmean((std["clam"] - std["normal"]).groupby("seed").mean())
    told = re.search(r"crop bounds 0.3 and 1 .* Over eight bounds, .*: std ([+-][\d.]+)", short)
    assert float(told[1]) == pytest.approx(effect, abs=0.051), "the larger grid is not kept back"
    rows = pd.read_csv(root / "data" / "results" / "mini_cifar100.csv")
    best = rows.pivot_table("best", ["seed", "crop_lower_bound"], "method")  # the mean of the best tenth
    effect = 100 * fmean((best["clam"] - best["normal"]).groupby("seed").mean())
    assert float(re.search(r"CIFAR-100: .*?best tenth ([+-][\d.]+)", said[-1])[1]) == pytest.approx(effect, abs=0.051)
    raw = []
    for name in ("crop", "cifar10", "cifar100", "mini_imagenet"):
        rows = pd.read_csv(root / "data" / "results" / f"mini_{name}.csv", low_memory=False)
        for metric in ("worst", "best"):
            wide = rows.pivot_table(metric, ["seed", "crop_lower_bound"], "method").dropna(subset=["clam", "normal"])
            raw.append(ttest_1samp((wide["clam"] - wide["normal"]).groupby("seed").mean(), 0).pvalue)
    holm = np.minimum(1, np.maximum.accumulate(np.sort(raw) * np.arange(len(raw), 0, -1)))
    corrected = holm[np.argsort(np.argsort(raw))]
    told = re.findall(r", p (< 0.001|[\d.]+)", blocks["tenths"])
    assert [0.0009 if one.startswith("<") else float(one) for one in told] == pytest.approx(corrected, abs=0.001)


def test_writing_blocks():
    text = "a\n\n<!-- one -->\n\nold\n\n<!-- -->\n\nb\n\n<!-- two -->\n\nolder\n\n<!-- -->\n"
    made = written(text, {"one": "1", "two": "2", "three": "3"})
    assert made == "a\n\n<!-- one -->\n\n1\n\n<!-- -->\n\nb\n\n<!-- two -->\n\n2\n\n<!-- -->\n"
    assert written(made, {"one": "1", "two": "2"}) == made, "writing twice changes nothing"
    with pytest.raises(ValueError, match="no block is called 'two': there are one"):
        written(text, {"one": "1"})


def found(n: int, effect: float = -2.0) -> pd.DataFrame:
    where = "small networks: Fashion-MNIST (part)"
    values = pd.Series(effect + np.linspace(-0.1, 0.1, n) if n > 1 else [effect])
    return claims.table([claims.Finding(where, "CLAM brings the classes closer than Normal", where, "std", values, -1)])


@pytest.mark.parametrize(
    ("seeds", "said", "counted"),
    [
        (1, "Too few seeds", "None of the five has that many; the most that any has is 1."),
        (2, "Too few seeds", "None of the five has that many; the most that any has is 2."),
        (5, "Enough seeds", "One of the five has that many; the most that any has is 5."),
    ],
)
def test_how_far_the_evidence_goes(seeds, said, counted):
    frames = {"small networks: Fashion-MNIST (part)": pd.DataFrame({"method": ["normal", "clam", claims.CONTROL]})}
    frames = {where: frame.assign(strength=[0.3, 1.0, 1.0]) for where, frame in frames.items()}
    assert "averages" not in front_page.how_far(frames, found(seeds)), "the paper has no such network"
    first, nothing, some = front_page.how_far(frames, found(seeds)).splitlines()
    assert first.endswith(counted)
    assert nothing.startswith("- *No runs yet*: "), "the weak points come first"
    assert "networks with 100 % training accuracy on a part of Fashion-MNIST (grid `long_embedded`)" in nothing
    assert some.startswith(f"- *{said}")
    here = "(grid `small_embedded`: 2 runs at crop bounds 0.3 and 1, "
    assert f"{here}{seeds} seed{'s' * (seeds > 1)} of CLAM beside Normal)" in some


def test_networks_that_stand_for_the_papers_are_shown_beside_them():
    where = "the paper's accuracy: CIFAR-10"
    frames, rows = regime(where, 5.0)
    said = front_page.how_far(frames, claims.table(rows))
    assert "as the paper's on CIFAR-10 (grid `fast_cifar10`: 10 runs at crop bound 1, 5 seeds of CLAM beside" in said
    assert "; Normal averages 90.0 %, the paper's 92.8 %)" in said, "the number printed in its table 4"


def regime(where: str, gain: float) -> tuple[dict[str, pd.DataFrame], list[claims.Finding]]:
    """Five seeds of Normal, CLAM with `gain` points in the worst tenth, and biases with two, that share their noise."""
    seeds, rows = range(5), []
    for method, worst in {"normal": 0.0, "clam": gain, claims.CONTROL: 2.0}.items():
        for seed in seeds:
            noise = 0.02 * (seed % 3) * (method == "clam")
            lift = (worst + noise) / 100
            rows.append((method, 1.0, seed, 0.9, 0.1 - lift / 2, 0.6 + lift))
    frames = {where: pd.DataFrame(rows, columns=["method", "strength", "seed", "average", "std", "worst"])}
    return frames, list(claims.of_regimes(frames))


def test_the_summary_says_each_regime_and_ends_with_what_can_be_quoted():
    small, heart = "small networks: Fashion-MNIST (part)", "100 % training accuracy: Fashion-MNIST (part)"
    (one, of_one), (two, of_two) = regime(small, 5.0), regime(heart, 0.0)
    found = claims.table([*of_one, *of_two])
    parts = front_page.summary(one | two, found).split("\n\n")
    assert [part.split(".**")[0] for part in parts[:3]] == [
        "**How far this goes",
        "**Small networks: Fashion-MNIST (part)",
        "**100 % training accuracy: Fashion-MNIST (part)",
    ]
    assert "Normal has 90.0 % on average, 60.0 % in the worst tenth" in parts[1]
    assert "CLAM: worst tenth +5.0 [+5.0, +5.0] (5 seeds), std −2.5" in parts[1]
    assert "CLAM against class biases: worst tenth −2.0 [−2.0, −2.0] (5 seeds), the opposite." in parts[2]
    assert parts[-1].startswith(
        "**To quote:** *CLAM brings the classes closer together than normal training: supported for "
    )
    assert "supported for small networks on a part of Fashion-MNIST; the opposite for networks with 100 %" in parts[-1]
    assert front_page.quote(claims.table([])) == "no runs yet"


def test_in_short_says_what_helps_where_and_what_it_costs():
    small, heart = "small networks: Fashion-MNIST (part)", "100 % training accuracy: Fashion-MNIST (part)"
    decided = claims.table([one for where, gain in ((small, 5.0), (heart, 0.0)) for one in regime(where, gain)[1]])
    said = front_page.in_short(decided, "Over eight bounds: less.").splitlines()
    assert said[1].startswith("- **Yes** for small networks on a part of Fashion-MNIST (5 seeds): the spread of class")
    assert said[1].endswith("(std) −2.5 [−2.5, −2.5], average accuracy +0.0 [+0.0, +0.0]. Over eight bounds: less.")
    where = "small networks on a part of Fashion-MNIST; **the opposite** for networks with 100 % training accuracy"
    assert said[-2].endswith(f"without training? **Yes** for {where} on a part of Fashion-MNIST.")
    assert said[-1].startswith(
        "- Class biases bring the classes closer than plain training too: small networks on a part"
    )
    assert said[-1].endswith("Fashion-MNIST std −1.0 [−1.0, −1.0], average +0.0 [+0.0, +0.0].")
    two = pd.concat([found(1).assign(where=f"the paper's accuracy: {images}") for images in ("CIFAR-10", "CIFAR-100")])
    once = "Not decided** for networks about as accurate as the paper's on CIFAR-10 (1 seed) and CIFAR-100 (1 seed)."
    assert once in front_page.in_short(two), "the kind of network is said once"
    said = front_page.in_short(found(1), "Over eight bounds: less.")
    assert said.endswith("\n- **Not decided** for small networks on a part of Fashion-MNIST (1 seed).")
    assert "class biases" not in said, "no run has them"
    assert front_page.in_short(claims.table([])) == "**Does it help?** We do not know: no runs yet."


def test_an_answer_has_verdict_effect_interval_p_and_seeds():
    images = dict.fromkeys(
        (claims.FASHION, claims.CIFAR100), pd.DataFrame(columns=["method", "strength", "seed", "std"])
    )
    first = front_page.five_rows(found(5), images).splitlines()[2]
    assert "| **Yes** for small networks | small networks: std −2.0 [−2.1, −1.9] (5 seeds), p < 0.001 |" in first
    first = front_page.five_rows(found(1), images).splitlines()[2]
    assert "| **Not decided** for small networks | small networks: std −2.0 (1 seed) |" in first
    assert len(front_page.five_rows(found(1), images).splitlines()) == 2 + 5
    assert "no runs yet" in front_page.five_rows(claims.table([]), images).splitlines()[-1]


@pytest.mark.parametrize(
    ("gain", "price", "said"),
    [
        (0.06, 0.1, "| **The good classes** on CIFAR-100 |"),
        (0.06, 0.0, "| **Not decided** |"),
        (-0.06, 0.1, "| **The good classes** on CIFAR-100; the worst do not surely gain on CIFAR-100 |"),
    ],
)
def test_who_pays_is_decided_over_the_seeds(gain, price, said):
    rows = []
    for seed in range(5):
        tenths = dict.fromkeys(claims.TENTHS, 0.5)
        rows.append({"method": "normal", "strength": 0.3, "seed": seed, **tenths})
        tenths |= {1: 0.5 + gain + 0.001 * seed, 10: 0.5 - price + 0.001 * (seed - 2)}
        rows.append({"method": "clam", "strength": 0.3, "seed": seed, **tenths})
    nothing = pd.DataFrame(columns=["method", "strength", "seed", "std"])
    images = {claims.FASHION: nothing, claims.CIFAR100: pd.DataFrame(rows)}
    assert said in front_page.five_rows(found(1), images).splitlines()[-1]
    assert ", p " in front_page.tenths_table(images)
    two = pd.DataFrame(rows)[lambda frame: frame["seed"] < 2]
    images = {claims.FASHION: nothing, claims.CIFAR100: two}
    assert "| **Not decided** |" in front_page.five_rows(found(1), images), "two seeds decide nothing"
    assert ", p " not in front_page.tenths_table(images), "and are not tested"


def test_the_figures_are_those_of_the_notebook(root):
    notebook = nbformat.read(root / "notebooks" / "05_what_we_found.ipynb", 4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    page = (root / "docs" / "findings.md").read_text(encoding="utf-8")
    assert len(re.findall(r"figures/05_what_we_found-\d", page)) == 2
    for number, picture in enumerate(shown, 1):
        name = f"figures/05_what_we_found-{number}.png"
        assert (root / name).read_bytes() == b64decode(picture), "python notebooks/refresh.py 05_what_we_found"
