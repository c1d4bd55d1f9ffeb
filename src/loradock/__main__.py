"""The program: `loradock`, and `python -m loradock`. Signals wait from the first lines until `main` hears them.

Else one that comes while modules are imported ends it with a traceback. Before anything is imported that the working
directory could hold, that is left out.
"""

from loradock.process import python

python.leave_working_directory()

import signal  # noqa: E402

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

from loradock.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
