"""What `loradock net-check` looks at between the ranks of a run, in order. To add a stage: one file, one line here."""

from loradock.env_check.cluster import all_reduce, clock, interface, link, node
from loradock.env_check.cluster.base import Stage

STAGES: tuple[Stage, ...] = (interface.STAGE, clock.STAGE, link.STAGE, all_reduce.STAGE, node.STAGE)
