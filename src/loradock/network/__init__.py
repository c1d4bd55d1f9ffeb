"""What `loradock net-check` looks at between the ranks of a run, in order. To add a stage: one file, one line here."""

from loradock.network import all_reduce, clock, interface, link, node
from loradock.network.base import Stage

STAGES: tuple[Stage, ...] = (interface.STAGE, clock.STAGE, link.STAGE, all_reduce.STAGE, node.STAGE)
