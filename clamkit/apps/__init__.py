"""What people open: the diagnosis of a model, the two explorers, the demo."""
