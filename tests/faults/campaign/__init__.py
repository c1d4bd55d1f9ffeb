"""Fault campaigns: many trials of one promise against one subject, each a line of bench/results/reliability/.

`PYTHONPATH=tests python -m faults.campaign P1 --trials 200` runs one; `--table` prints docs/reliability.md.
"""
