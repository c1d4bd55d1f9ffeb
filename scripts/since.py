"""Names the test files that reach what differs from a git revision. `scripts/test --since BASE` is its door.

A changed requirement, lock or script reaches all tests; `import_graph` says what else reaches what.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

from import_graph import Graph

ROOT = Path(__file__).resolve().parent.parent
REACHES_ALL = re.compile(r"scripts/|pyproject\.toml$|docker/.*\.lock$")
WAYS = {"itself": "changed themselves", "import": "by what they import or start", "name": "by a name in them"}


def is_here(path: str) -> bool:
    """Whether the checkout has the file: one that was removed differs, too."""
    return (ROOT / path).is_file()


def read(path: str) -> str:
    """The text of a file of the checkout; nothing of one that was removed."""
    return (ROOT / path).read_text(encoding="utf-8") if is_here(path) else ""


def git(*arguments: str) -> list[str]:
    """The paths, or the one line, that git answers with."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or "no common ancestor"
        sys.exit(f"error: git {' '.join(arguments)}: {said}\nhint: scripts/test --since main")
    return [part for part in done.stdout.split("\0") if part]


def changed_since(base: str) -> set[str]:
    """Paths that differ from where this branch left `base`: committed or not, removed, or new and not ignored."""
    ancestor = git("merge-base", base, "HEAD")[0].strip()
    differing = git("diff", "--name-only", "--no-renames", "-z", ancestor)
    return {*differing, *git("ls-files", "--others", "--exclude-standard", "-z")}


def packages_of_data(paths: set[str]) -> set[str]:
    """Of each data file in src/: the package that it is read from."""
    data = [PurePosixPath(path) for path in paths if path.startswith("src/") and not path.endswith(".py")]
    packages = ([f"{folder}/__init__.py" for folder in path.parents] for path in data)
    return {next(package for package in above if is_here(package)) for above in packages}


def choose(graph: Graph, changed: set[str]) -> dict[str, str]:
    """Test files that reach a changed one, each with its way."""
    modules = changed | packages_of_data(changed)
    chosen: dict[str, str] = {}
    for test in filter(is_here, graph.tests):
        reached = graph.reached(test)
        if test in changed:
            chosen[test] = "itself"
        elif not modules.isdisjoint(reached):
            chosen[test] = "import"
        elif any(graph.is_named(path, by=module) for module in graph.of_tests(reached) for path in changed):
            chosen[test] = "name"
    return chosen


def main() -> None:
    """The test files on stdout, one a line; on stderr how many of how many, and why."""
    parser = argparse.ArgumentParser(prog="scripts/test --since", description="Name the tests that reach a change.")
    parser.add_argument("base", help="a git revision")
    changed = changed_since(parser.parse_args().base)
    graph = Graph({*git("ls-files", "-z"), *changed}, read)
    tests = list(filter(is_here, graph.tests))
    reaching_all = sorted(filter(REACHES_ALL.match, changed))
    if reaching_all:
        print(f"all {len(tests)} test files: {reaching_all[0]} differs", file=sys.stderr)
        print(*tests, sep="\n")
        return
    chosen = choose(graph, changed)
    counts = Counter(chosen.values())
    reasons = ", ".join(f"{counts[way]} {words}" for way, words in WAYS.items() if counts[way])
    said = f"{len(chosen)} of {len(tests)} test files reach what differs ({len(changed)} files)"
    print(f"{said}: {reasons}" if reasons else said, file=sys.stderr)
    print(*chosen, sep="\n")


if __name__ == "__main__":
    main()
