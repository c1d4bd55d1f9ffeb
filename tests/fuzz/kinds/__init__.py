"""The kinds of files that the fuzz test spoils, in order."""

from fuzz.kinds.base import Kind
from fuzz.kinds.model_config import CONFIG
from fuzz.kinds.rows import JSONL
from fuzz.kinds.run_directory import RUN_DIRECTORY

KINDS: tuple[Kind, ...] = (CONFIG, JSONL, *RUN_DIRECTORY)
