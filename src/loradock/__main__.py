"""`python -m loradock`: the same door as the `loradock` command."""

from loradock.cli import main

main()
