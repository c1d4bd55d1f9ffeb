"""The only door to the machine: files, folders, processes, packages, libraries and cards.

Everything that asks what this machine is goes through a `Host`, so that a test can hand in another one. Its methods
lie by subject, one file each; each answers with plain values or types of `answers.py`, and never judges.
"""

from loradock.host.builds import Builds
from loradock.host.cards import Cards
from loradock.host.disk_speed import DiskSpeed
from loradock.host.distributions import Distributions
from loradock.host.folders import Folders
from loradock.host.hub import Hub
from loradock.host.libraries import Libraries


class Host(Folders, Cards, Builds, DiskSpeed, Distributions, Libraries, Hub):
    """The real machine. It keeps nothing, so it can be handed to another process."""
