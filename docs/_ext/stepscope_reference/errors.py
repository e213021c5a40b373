"""Exit codes of commands, and the errors that end with each."""

from __future__ import annotations

import ast
from pathlib import Path

import stepscope
from stepscope.cli import EXIT_CODES
from stepscope.core.errors import StepscopeError
from stepscope_reference.markdown import code, table, text
from stepscope_reference.snapshots import snapshot


def exit_codes() -> str:
    """The codes with their meaning, then the expected errors and other endings of a command."""
    codes = [(str(number), text(meaning)) for number, meaning in EXIT_CODES.items()]
    contract = snapshot("exit_codes")
    meanings = _first_lines(contract["errors"])
    errors = sorted(
        (str(number), code(name), text(meanings[name]))
        for name, number in contract["errors"].items()
        if name != StepscopeError.__name__  # never raised itself
    )
    endings = sorted((str(number), text(name)) for name, number in contract["commands"].items() if name not in meanings)
    return (
        f"{table(('code', 'meaning'), codes)}\n"
        f"## Errors\n\nSubclasses of `StepscopeError`.\n\n{table(('code', 'error', 'meaning'), errors)}\n"
        f"## Other endings\n\n{table(('code', 'a command ends by'), endings)}"
    )


def _first_lines(names: dict[str, int]) -> dict[str, str]:
    """First docstring line of the classes of these names, from the source."""
    found = {}
    for path in Path(stepscope.__file__).parent.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if any(f"class {name}(" in source for name in names):
            for node in ast.parse(source).body:
                if isinstance(node, ast.ClassDef) and node.name in names:
                    found[node.name] = (ast.get_docstring(node) or "").partition("\n")[0]
    return found
