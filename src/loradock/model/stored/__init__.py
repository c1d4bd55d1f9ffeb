"""Ways of storing weights that files come in and that are made dense while they are read; see `Format`."""

from loradock.model.stored.base import Contents, Format, Header, Weight
from loradock.model.stored.compressed import CompressedTensors
from loradock.model.stored.fp8 import Fp8
from loradock.model.stored.mxfp4 import Mxfp4

FORMATS: dict[str, Format] = {each.method: each for each in (Mxfp4(), Fp8(), CompressedTensors())}
"""By the `quant_method` of config.json."""

__all__ = ["FORMATS", "Contents", "Format", "Header", "Weight"]
