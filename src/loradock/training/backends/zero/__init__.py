"""The zero backend: DeepSpeed's ZeRO-2 and ZeRO-3.

`backend.py` is the way in; `sharding.py` proves that DeepSpeed shards and gathers its state; `weights.py` shards the
base under ZeRO-3.
"""
