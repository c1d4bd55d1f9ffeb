"""The program: `loradock`, and `python -m loradock`. Signals wait from the first line until `main` hears them.

Else one that comes while modules are imported ends it with a traceback.
"""

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))

from loradock.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
