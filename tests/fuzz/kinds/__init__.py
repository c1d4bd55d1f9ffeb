"""The kinds of files that the fuzz test spoils, in order."""

from fuzz.kinds.base import Kind
from fuzz.kinds.model_config import CONFIG
from fuzz.kinds.rows import JSONL

KINDS: tuple[Kind, ...] = (CONFIG, JSONL)
