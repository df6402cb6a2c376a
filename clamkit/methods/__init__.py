"""The min player: `specs` (every method by name, no torch), `weighters` (their state), `losses`."""
