"""The only door to the machine: files, folders, processes, packages, libraries and GPUs.

Everything that asks what this machine is goes through a `Host`, so that a test can hand in another one. Its methods
lie by subject, one file each; each answers with plain values or types of `answers.py`, and never judges.
"""

from loradock.machine.builds import Builds
from loradock.machine.disk_speed import DiskSpeed
from loradock.machine.distributions import Distributions
from loradock.machine.folders import Folders
from loradock.machine.gpus import Gpus
from loradock.machine.hub import Hub
from loradock.machine.libraries import Libraries


class Host(Folders, Gpus, Builds, DiskSpeed, Distributions, Libraries, Hub):
    """The real machine. It keeps nothing, so it can be handed to another process."""
