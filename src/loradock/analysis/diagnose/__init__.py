"""Diagnosis: which of a configuration's choices slows it, found by changing one after another and measuring.

`children` gives each measurement a process of its own, `attempt` is what runs there, `search` decides what to measure
next, `statistics` when a difference is outside the noise, `verdict` what it means, `document` puts it all together.
"""
