"""clamkit: class-dependent effects of data augmentation, and the CLAM method that reduces them."""

__version__ = "0.1.0"
