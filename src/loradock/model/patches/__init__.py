"""What has to be put right in a loaded model, one file a patch; each says which fault it prevents."""

from collections.abc import Callable
from typing import Any

from loradock.model.patches import avx512, whole_blocks

PATCHES: tuple[Callable[[Any], int], ...] = (avx512.apply, whole_blocks.apply)
