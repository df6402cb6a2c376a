"""What one notebook alone needs, or those on one subject: figures and computations. `from helpers import run_figures`.

training        notebooks 10 to 15: what is run, or what smaller thing stands for it; the verdict
large           notebooks 14 and 15: layouts of ImageNet and iNaturalist in small, and what the real ones ask for
theory_figures  notebooks 00 to 03 and 30: the triangle, the game in one picture, regrets and bounds
players         notebooks 01 and 03: max players, the paper's Theorem 1
theorem         notebook 03: its claims, computed and checked
paper_audit     the paper's tables checked against themselves: notebook 04, quoted in 25, 26, 28 and 29
claims          its claims and open questions decided by our runs: notebook 05
front_page      the numbers of README.md, docs/start.md and docs/findings.md
run_figures     notebooks 05 and 21 to 29
run_measures    notebooks 20, 22 and 28
real_labels     notebook 29
"""
