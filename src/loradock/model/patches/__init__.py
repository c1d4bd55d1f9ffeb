"""What has to be put right in a model before it is built or once it is loaded, one file a patch.

Each says which fault it prevents.
"""

from collections.abc import Callable
from typing import Any

from loradock.model.patches import avx512, decoder, experts, falcon, outputs, whole_blocks

BUILDING: tuple[Callable[[Any], None], ...] = (falcon.apply, decoder.build, experts.build)
PATCHES: tuple[Callable[[Any], int], ...] = (
    avx512.apply,
    decoder.apply,
    outputs.apply,
    whole_blocks.apply,
    experts.apply,
)
