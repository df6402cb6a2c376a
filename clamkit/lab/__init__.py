"""The reproduction around the core: grids of runs, committed results, tables, the paper's numbers."""
