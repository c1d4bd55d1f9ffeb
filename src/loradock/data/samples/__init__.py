"""The kinds of samples, in the order in which formats are theirs; the first one of a run decides what an epoch is."""

from loradock.catalog.samples import SampleKind
from loradock.data.samples.base import SampleSet
from loradock.data.samples.pairs import PairSamples
from loradock.data.samples.rows import RowSamples

SAMPLES: tuple[type[SampleSet], ...] = (PairSamples, RowSamples)


def kind_of(format: str) -> SampleKind:
    """What the rows of a format are."""
    return next(kind for kind in SAMPLES if kind.formats is None or format in kind.formats).kind
