"""The kinds of samples; the first one of a run decides what an epoch is."""

from loradock.catalog.samples import SampleKind
from loradock.data.formats import named
from loradock.data.samples.base import SampleSet
from loradock.data.samples.judgements import JudgementSamples
from loradock.data.samples.pairs import PairSamples
from loradock.data.samples.preferences import PreferenceSamples
from loradock.data.samples.rows import RowSamples

SAMPLES: tuple[type[SampleSet], ...] = (PairSamples, PreferenceSamples, JudgementSamples, RowSamples)


def kind_of(format: str) -> SampleKind:
    """What the rows of a format are; of none the last kind, which preparing refuses."""
    return named(format).kind if format else SAMPLES[-1].kind
