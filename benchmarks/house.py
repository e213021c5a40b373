"""Figures of how hard the code is to learn: sizes, imports, docstrings, words of the documents, files one datum enters.

`python -m benchmarks.house [ROOT] [--trace DIR]` prints one JSON document about the checkout ROOT, by default this one.
Static figures are read from the text of ROOT/stepscope, so that any checkout can be compared with any other. The two
dynamic ones run ROOT's own code in processes of this Python, and are null where the trace or torch is missing.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

_PACKAGE = "stepscope"
_HERE = Path(__file__).resolve().parents[1]
_TRACE = Path("shared", "traces", "h100x2", "fsdp")
"""Beside the checkout."""

GENERATED_MARK = "<!-- generated"
"""A page that holds this is written by a program and not counted."""

_NUM_STEPS, _NUM_SETTLING = 60, 30
"""Of a profiled run; by then the trace of its capture is written."""
_STEP_SECONDS = 0.002

_CO_OPTIMIZED = 0x1
"""Flag of the code of functions; that of modules and class bodies lacks it."""


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file of the package.

    Attributes:
        name: dotted.
        is_package: it is an `__init__.py`.
        imports: modules of the package that it imports, anywhere in the file, also for types alone.
        top_imports: those that it imports when it is loaded, or for types alone.
        import_lines: lines of import statements, continuation lines counted.
    """

    name: str
    is_package: bool
    text: str
    docstring: str
    is_empty: bool
    imports: frozenset[str]
    top_imports: frozenset[str]
    import_lines: int

    @property
    def folder(self) -> str:
        """The package that it lies in, which is itself where it is one."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def num_lines(self) -> int:
        """Lines of the file."""
        return self.text.count("\n")


@dataclass(frozen=True, slots=True)
class House:
    """Figures of one checkout.

    Attributes:
        modules: Python files of the package.
        modules_without_packages: those but `__init__.py`; modules_with_code: those but `__init__.py` that hold at most
            a docstring.
        median_lines: of modules that are no `__init__.py`.
        import_line_share: lines of import statements / all lines.
        one_importer: modules and packages that one other module alone imports.
        one_importer_same_folder: of those, the ones whose importer lies in the same package, or is that package.
        largest_folder, largest_folder_files: by its own Python files, `__init__.py` included.
        folders_over_30: folders of more than 30 such files.
        question_docstrings: share of modules that are no `__init__.py` whose docstring's first line asks something.
        comment_lines: lines that begin with #.
        document_words: of hand-written Markdown in docs/ and the root, without the change log.
        import_circles: groups of modules that import each other at top level, for types alone included.
        trace_files: files of the package that `stepscope analyze` of one trace folder enters until its verdict:
            functions and class bodies; trace_functions_files: functions alone.
        step_files: files that one steady `prof.step(loss=tensor, tokens=1)` of a run on the CPU enters, on the training
            thread.
    """

    modules: int
    modules_without_packages: int
    modules_with_code: int
    lines: int
    median_lines: float
    import_line_share: float
    one_importer: int
    one_importer_same_folder: int
    largest_folder: str
    largest_folder_files: int
    folders_over_30: int
    question_docstrings: float
    comment_lines: int
    document_words: int
    import_circles: list[list[str]]
    trace_files: int | None
    trace_functions_files: int | None
    step_files: int | None


def house(root: Path, trace: Path | None = None) -> House:
    """The figures of a checkout.

    Args:
        trace: folder of one job's traces; None leaves the dynamic figures out.
    """
    modules = read_modules(root)
    plain = [one for one in modules if not one.is_package]
    lines = sum(one.num_lines for one in modules)
    folders = Counter(one.folder for one in modules)
    largest, num_files = max(folders.items(), key=lambda entry: (entry[1], entry[0]), default=("", 0))
    lonely = one_importer(modules)
    traced = None if trace is None else _measured(root, "trace", str(trace))
    stepped = None if trace is None else _measured(root, "step")
    return House(
        modules=len(modules),
        modules_without_packages=len(plain),
        modules_with_code=sum(not (one.is_package and one.is_empty) for one in modules),
        lines=lines,
        median_lines=statistics.median([one.num_lines for one in plain] or [0]),
        import_line_share=round(sum(one.import_lines for one in modules) / max(lines, 1), 4),
        one_importer=len(lonely),
        one_importer_same_folder=sum(_is_beside(module, importer) for module, importer in lonely.items()),
        largest_folder=largest,
        largest_folder_files=num_files,
        folders_over_30=sum(number > 30 for number in folders.values()),
        question_docstrings=round(sum("?" in _first_line(one.docstring) for one in plain) / max(len(plain), 1), 4),
        comment_lines=sum(line.lstrip().startswith("#") for one in modules for line in one.text.splitlines()),
        document_words=document_words(root),
        import_circles=import_circles(modules),
        trace_files=None if traced is None else traced["entered"],
        trace_functions_files=None if traced is None else traced["functions"],
        step_files=None if stepped is None else stepped["functions"],
    )


def read_modules(root: Path) -> list[Module]:
    """All modules of the package in a checkout, by name."""
    paths = {_name_of(path.relative_to(root)): path for path in sorted(root.glob(f"{_PACKAGE}/**/*.py"))}
    return [_read(name, path, paths.keys()) for name, path in paths.items()]


def one_importer(modules: Iterable[Module]) -> dict[str, str]:
    """Modules imported by exactly one other module, with that module."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for imported in module.imports:
            importers[imported].add(module.name)
    return {name: next(iter(of_name)) for name, of_name in importers.items() if len(of_name) == 1}


def import_circles(modules: Iterable[Module]) -> list[list[str]]:
    """Import cycles: groups of modules that reach each other by top-level imports."""
    graph = {module.name: module.top_imports for module in modules}
    reachable = {name: _reachable(graph, name) for name in graph}
    circles = {
        tuple(sorted(other for other in reachable[name] if name in reachable[other]))
        for name in graph
        if name in reachable[name]
    }
    return sorted(map(list, circles))


def document_words(root: Path) -> int:
    """Words of the pages that people have written."""
    pages = [*root.glob("docs/**/*.md"), *root.glob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.name != "CHANGELOG.md"]
    return sum(len(text.split()) for text in texts if GENERATED_MARK not in text)


def _name_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _is_beside(module: str, importer: str) -> bool:
    return module.rpartition(".")[0] in (importer, importer.rpartition(".")[0])


def _read(name: str, path: Path, names: Iterable[str]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    known = frozenset(names)
    statements = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = {line for node in statements for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return Module(
        name=name,
        is_package=path.name == "__init__.py",
        text=text,
        docstring=ast.get_docstring(tree) or "",
        is_empty=all(isinstance(node, ast.Expr) for node in tree.body),
        imports=frozenset(one for node in statements for one in _imported(node, known)) - {name},
        top_imports=frozenset(one for node in _at_top(tree.body) for one in _imported(node, known)) - {name},
        import_lines=len(lines),
    )


def _at_top(body: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements outside functions and classes."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _at_top(ast.iter_child_nodes(node))


def _imported(node: ast.Import | ast.ImportFrom, known: frozenset[str]) -> Iterator[str]:
    """A name that a package passes on counts as an import of the package."""
    for alias in node.names:
        base = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        full = f"{base}.{alias.name}" if base else alias.name
        found = full if full in known else base
        if found in known:
            yield found


def _reachable(graph: dict[str, frozenset[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def _measured(root: Path, what: str, *arguments: str) -> dict[str, int] | None:
    """Output of a process that runs the code of `root`; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STEPSCOPE_AGENT_SOCKET": "",
        }
        # -P: the folder of this file holds modules whose names others may have
        command = [sys.executable, "-P", __file__, f"--measure-{what}", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return None
    figures: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return figures


class _Entered:
    """Files of the package whose code is entered on the watched thread.

    Attributes:
        entered: functions and class bodies; functions: those alone.
    """

    def __init__(self, package: str) -> None:
        self._folder = os.path.dirname(os.path.realpath(package)) + os.sep
        self.entered: set[str] = set()
        self.functions: set[str] = set()

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """For sys.setprofile."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._folder) and not code.co_name.startswith("<"):
            self.entered.add(code.co_filename)
            if code.co_flags & _CO_OPTIMIZED:
                self.functions.add(code.co_filename)

    def figures(self) -> dict[str, int]:
        """How many."""
        return {"entered": len(self.entered), "functions": len(self.functions)}


def _measure_trace(trace: str) -> dict[str, int]:
    """Analyse a folder of traces in this process, from the command line to the printed verdict."""
    import stepscope

    entered = _Entered(stepscope.__file__)
    from stepscope.cli import main

    output = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        _watched(entered, lambda: main(["analyze", trace, "--workers", "1", "--no-keep"]))
    finally:
        os.dup2(output, 1)
    return entered.figures()


def _watched(entered: _Entered, call: Callable[[], object]) -> None:
    threading.setprofile(entered.see)
    sys.setprofile(entered.see)
    try:
        call()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _measure_step() -> dict[str, int]:
    """Train a little under `profile()`; return the files that most steady steps enter on the training thread."""
    import torch

    import stepscope

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps: list[dict[str, int]] = []
    with stepscope.profile(out="runs") as profiler:
        for _ in range(_NUM_STEPS):
            loss = model(torch.ones(2, 4)).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(_STEP_SECONDS)
            entered = _Entered(stepscope.__file__)
            sys.setprofile(entered.see)
            profiler.step(loss=loss, tokens=1)
            sys.setprofile(None)
            steps.append(entered.figures())
    figures: dict[str, int] = json.loads(statistics.mode(json.dumps(one) for one in steps[_NUM_SETTLING:]))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=_HERE, help="checkout; default: this one")
    parser.add_argument("--trace", type=Path, help=f"folder of traces; default: ../{_TRACE} beside the checkout")
    parser.add_argument("--measure-trace", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--measure-step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_trace:
        print(json.dumps(_measure_trace(options.measure_trace)))
    elif options.measure_step:
        print(json.dumps(_measure_step()))
    else:
        root = options.root.resolve()
        trace = (options.trace or root.parent / _TRACE).resolve()
        print(json.dumps(asdict(house(root, trace if trace.is_dir() else None)), indent=1))


if __name__ == "__main__":
    main()
