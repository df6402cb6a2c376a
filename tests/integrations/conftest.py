"""Before what imports torchvision itself, such as Lightning."""

import clamkit.data.vision  # noqa: F401
