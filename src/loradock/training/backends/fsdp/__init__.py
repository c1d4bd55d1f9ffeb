"""The fsdp backend: FSDP2 for a model that does not fit one GPU.

`backend.py` is the way in; `sharding.py` shards the model and proves it; `adapters.py` gathers the adapter for a
checkpoint; `optimizer.py` updates this rank's part.
"""
