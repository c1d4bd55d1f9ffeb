"""The kinds of files that the fuzz test spoils, in order."""

from fuzz.kinds.base import Kind
from fuzz.kinds.cache import CACHE
from fuzz.kinds.columnar import COLUMNAR
from fuzz.kinds.model_config import CONFIG
from fuzz.kinds.rows import TEXTS

KINDS: tuple[Kind, ...] = (CONFIG, *TEXTS, *COLUMNAR, *CACHE)
