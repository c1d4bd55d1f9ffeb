"""config.json of a model directory."""

from __future__ import annotations

from fuzz.kinds.base import Kind
from fuzz.kinds.model_parts import PLAN, TRAIN, make
from fuzz.mutate import any_of, of_bytes, of_json

MUTATE = any_of(of_json, of_json, of_json, of_bytes)

CONFIG = Kind(name="config.json", make=make, file="model/config.json", mutate=MUTATE, command=PLAN)
TRAINED_CONFIG = Kind(
    name="config.json, trained", make=make, file="model/config.json", mutate=MUTATE, command=TRAIN, share=0.2
)
