"""The game on paper: sets of weights, update rules, play, regret and bounds. numpy and scipy alone."""
