"""The kinds of files that the fuzz test spoils, in order."""

from fuzz.kinds.adapters import ADAPTERS
from fuzz.kinds.base import Kind
from fuzz.kinds.cache import CACHE
from fuzz.kinds.checkpoints import CHECKPOINTS
from fuzz.kinds.columnar import COLUMNAR
from fuzz.kinds.model_config import CONFIG, TRAINED_CONFIG
from fuzz.kinds.model_tokenizer import CHAT_TEMPLATE, GENERATION, TOKENIZER, TOKENIZER_CONFIG
from fuzz.kinds.model_weights import HEADER, INDEX, PICKLE, WEIGHTS
from fuzz.kinds.rows import TEXTS
from fuzz.kinds.run_directory import RUN_DIRECTORY
from fuzz.kinds.settings import SETTINGS

KINDS: tuple[Kind, ...] = (
    CONFIG,
    TRAINED_CONFIG,
    HEADER,
    WEIGHTS,
    INDEX,
    PICKLE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    GENERATION,
    *TEXTS,
    *COLUMNAR,
    *CACHE,
    *SETTINGS,
    *RUN_DIRECTORY,
    *CHECKPOINTS,
    *ADAPTERS,
)
