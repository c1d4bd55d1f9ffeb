"""The kinds of files that the fuzz test spoils, in order."""

from fuzz.kinds.adapters import ADAPTERS
from fuzz.kinds.base import Kind
from fuzz.kinds.checkpoints import CHECKPOINTS
from fuzz.kinds.model_config import CONFIG
from fuzz.kinds.rows import JSONL
from fuzz.kinds.run_directory import RUN_DIRECTORY
from fuzz.kinds.settings import SETTINGS

KINDS: tuple[Kind, ...] = (CONFIG, JSONL, *SETTINGS, *RUN_DIRECTORY, *CHECKPOINTS, *ADAPTERS)
