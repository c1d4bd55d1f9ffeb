"""An adapter and its base as one model directory: planned from headers, written tensor by tensor, proven."""
