"""The reproduction around the core: grids of runs, committed results, the paper's numbers and claims."""
