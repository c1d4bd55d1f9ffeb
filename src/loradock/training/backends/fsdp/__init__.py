"""The sharded engine: FSDP2 in a loop of our own, for a model that does not fit one card.

`engine.py` is the way in; `sharding.py` cuts the model up and proves it; `adapters.py` puts the adapter together for a
checkpoint; `optimizer.py` updates this process's part; `trainer.py` is the loop.
"""

from __future__ import annotations

from loradock.training.backends.fsdp.engine import ShardedEngine

__all__ = ["ShardedEngine"]
