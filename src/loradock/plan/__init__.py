"""What a run will do and why: the decisions (knobs), memory and throughput models, the table of GPUs, the audit."""
