"""Which files of this checkout a test file reaches: what it imports, however far away, and what it starts or names.

Imports are read from the syntax tree, also those within functions and those within text for another Python; what is
imported for the type checker alone never runs. What no import shows:

- a test that starts `loradock VERB` reaches that verb's page: a verb is a word of it, or of a document that it names,
  where it or a module of tests/ that it imports starts programs;
- a package that imports a member by a name put together reaches all its members;
- a test reaches each conftest.py above it, and what a fixture there imports if it takes that fixture by its name;
- a file that is read as text is reached by its name, or by that of a folder of which the test lists the files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath

PLACES = ("src/", "tests/", "", "scripts/", "docker/")
"""Where a module's name is looked up, each with its slash."""
VERBS, TABLE = "src/loradock/cli.py", "loradock.cli.COMMANDS"
OF_ALL = "tests/conftest.py"
IS_TEST = re.compile(r"tests/(.*/)?test_[^/]*\.py$")
VERB_ROW = re.compile(r'^    "([a-z-]+)": \("([\w.]+)"', re.MULTILINE)
PROGRAM = re.compile(r"^loradock$|\bscripts/run\b|-m loradock\b")
VERB_IN_TEXT = re.compile(r"\b(?:loradock|scripts/run) ([a-z-]+)")
IMPORT_IN_TEXT = re.compile(
    r"^\w+(?:\.\w+)+$|\bloradock(?:\.\w+)+|\b(?:from|import)\s+([a-z_][\w.]*)(?:\s+import\s+([\w, ]+))?"
)
LISTING = {"glob", "rglob"}


class Module:
    """What one Python file says of others; imports are dotted names."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.tree = ast.parse(text)

    @cached_property
    def texts(self) -> set[str]:
        """Its text constants."""
        return set(texts_in(self.tree))

    @cached_property
    def fixtures(self) -> dict[str, ast.AST]:
        """The functions of a conftest.py; nothing of another file."""
        body = self.tree.body if self.path.endswith("conftest.py") else []
        return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def imports(self) -> set[str]:
        """What it imports, its fixtures left out."""
        fixtures = set(self.fixtures.values())
        return set(imports_of([node for node in self.tree.body if node not in fixtures]))

    @cached_property
    def parts(self) -> set[str]:
        """Names of files and folders, as parts of a path in a text."""
        return {part for text in self.texts if "\n" not in text for part in text.split("/")}

    @cached_property
    def listed(self) -> set[str]:
        """Patterns of the names that it looks for in folders."""
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return {
            pattern_of(call) for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in LISTING
        }

    @cached_property
    def imports_members(self) -> bool:
        """Whether it imports modules by names that it puts together."""
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and node.args)
        return any("import_module" in ast.dump(call.func) and isinstance(call.args[0], ast.JoinedStr) for call in calls)

    @cached_property
    def starts_programs(self) -> bool:
        """Whether it starts loradock's command line, or calls it."""
        return any(PROGRAM.search(text) for text in self.texts) or "loradock.cli" in self.imports

    @cached_property
    def first_words(self) -> set[str]:
        """What could be a verb: a text's first word, and a word after the command's name."""
        first = {text.partition(" ")[0] for text in self.texts}
        return first.union(*(VERB_IN_TEXT.findall(text) for text in self.texts))


def pattern_of(call: ast.Call) -> str:
    """The pattern of names that a call lists; any name where it is not a plain text."""
    match call.args[:1]:
        case [ast.Constant(value=str(pattern))]:
            return PurePosixPath(pattern).name
        case _:
            return "*"


def texts_in(tree: ast.AST) -> Iterator[str]:
    """Every text constant beneath a node."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return (value for value in constants if isinstance(value, str))


def names_in(tree: ast.AST) -> set[str]:
    """What may name a fixture beneath a node: parameters and texts."""
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}.union(texts_in(tree))


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names that are imported beneath the nodes; of `from a import b` both `a` and `a.b`."""
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from imports_of(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from of_names(node.module, (alias.name for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in IMPORT_IN_TEXT.finditer(node.value):
                module, names = match.groups()
                members = [name.strip() for name in (names or "").split(",")]
                yield from of_names(module or match.group(), [*members, "__main__"])
        elif isinstance(node, ast.List | ast.Tuple | ast.Call):
            yield from of_python(node.args if isinstance(node, ast.Call) else node.elts)
        yield from imports_of(ast.iter_child_nodes(node))


def of_python(arguments: list[ast.expr]) -> Iterator[str]:
    """The module that `-m MODULE` names among the words of a command line."""
    words = [word.value if isinstance(word, ast.Constant) else None for word in arguments]
    for option, name in pairwise(words):
        if option == "-m" and isinstance(name, str):
            yield from of_names(name, ["__main__"])


def of_names(module: str, names: Iterable[str]) -> Iterator[str]:
    """The module, and what is imported from it, which may be modules as well."""
    yield module
    yield from (f"{module}.{name}" for name in names if name)


class Graph:
    """Which file of `paths` reaches which; `read` gives the text of one."""

    def __init__(self, paths: Iterable[str], read: Callable[[str], str]) -> None:
        self.paths = set(paths)
        self.modules = {path: Module(path, read(path)) for path in sorted(self.paths) if path.endswith(".py")}
        self.tests = [path for path in self.modules if IS_TEST.match(path)]
        documents = (path for path in self.paths if re.match(r"(docs/)?[^/]+\.md$", path))
        self.documents = {PurePosixPath(path).name: set(VERB_IN_TEXT.findall(read(path))) for path in documents}
        self.pages: dict[str, str] = dict(VERB_ROW.findall(read(VERBS)))
        self.neighbours = {path: self._neighbours(module) for path, module in self.modules.items()}

    def reached(self, test: str) -> set[str]:
        """All that a test file runs: along imports and, where it starts programs, from the pages of its verbs."""
        imported = self._along({test})
        modules = self.of_tests(imported)
        if any(module.starts_programs for module in modules):
            verbs = set().union(*map(self._verbs, modules))
            imported |= self._along({VERBS}.union(*(self._files(self.pages[verb]) for verb in verbs)))
        return imported | self._along({OF_ALL})

    def of_tests(self, paths: set[str]) -> list[Module]:
        """The modules of tests/ among the paths."""
        return [self.modules[path] for path in paths if path.startswith("tests/") and path in self.modules]

    def is_named(self, path: str, *, by: Module) -> bool:
        """Whether a module names the file, or a folder that holds it where it lists folders."""
        pure = PurePosixPath(path)
        if pure.name in by.parts and (pure.suffix or pure.name == path):
            return True
        folders = (set(folder.parts) - {"tests"} for folder in pure.parents if folder.parts)
        is_listed = any(fnmatch(pure.name, pattern) for pattern in by.listed)
        return is_listed and any(folder and folder <= by.parts for folder in folders)

    def _verbs(self, module: Module) -> set[str]:
        """The verbs that a module may start: those in its texts, in a document that it names, or all of the table."""
        if TABLE in module.imports:
            return set(self.pages)
        documents = (words for name, words in self.documents.items() if name in module.parts)
        return self.pages.keys() & module.first_words.union(*documents)

    def _along(self, paths: set[str]) -> set[str]:
        """The paths and what they reach by imports; what every test imports is not gone through for each."""
        reached, left = set(paths), list(paths)
        while left:
            new = self.neighbours.get(left.pop(), set()) - reached
            reached |= new
            left += new - {OF_ALL}
        return reached

    def _neighbours(self, module: Module) -> set[str]:
        # The verbs' pages are reached by what starts one of them.
        pages = tuple(self.pages.values()) if module.path == VERBS else ()
        names = {name for name in module.imports if not name.startswith(pages)}
        names |= set(imports_of(self._fixtures_of(module)))
        neighbours = set(self._conftests(module.path)).union(*map(self._files, names))
        if module.imports_members:
            folder = module.path.rpartition("/")[0]
            neighbours |= {path for path in self.modules if path.startswith(f"{folder}/")}
        return neighbours

    def _files(self, name: str) -> set[str]:
        """The files that an import of the dotted name runs: the module's, and those of the packages it lies in."""
        parts = name.split(".")
        stems = [place + "/".join(parts[:end]) for place in PLACES for end in range(1, len(parts) + 1)]
        return self.paths & {stem + end for stem in stems for end in (".py", "/__init__.py")}

    def _conftests(self, path: str) -> list[str]:
        """The conftest.py files above a test or above another one: pytest reads them for nothing else."""
        if not IS_TEST.match(path) and not path.endswith("/conftest.py"):
            return []
        above = [f"{folder}/conftest.py" for folder in PurePosixPath(path).parents]
        return [conftest for conftest in above if conftest in self.paths and conftest != path]

    def _fixtures_of(self, module: Module) -> list[ast.AST]:
        """The fixtures above that a file names, and those that these take."""
        known: dict[str, ast.AST] = {}
        for conftest in self._conftests(module.path):
            known |= self.modules[conftest].fixtures
        taken, left = set[str](), names_in(module.tree) & known.keys() if known else set[str]()
        while left:
            taken |= left
            left = (set().union(*(names_in(known[name]) for name in left)) & known.keys()) - taken
        return [known[name] for name in sorted(taken)]
