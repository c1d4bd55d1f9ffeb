"""How GPU and host are doing while a run trains: samples in `monitor.jsonl`, and alerts in words."""
