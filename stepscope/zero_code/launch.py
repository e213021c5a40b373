"""How does a command run such that the Python processes of it measure themselves?

The command takes this process's place instead of becoming its child: signals, job control and exit code are its own,
to the last detail.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from stepscope.core.errors import UsageError
from stepscope.training.entry import is_disabled
from stepscope.zero_code.order import VARIABLE, Order

_STARTUP = str(Path(__file__).resolve().parent / "startup")
_PATH = "PYTHONPATH"


def environment_for(order: Order, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the command runs; the given one when STEPSCOPE_DISABLE turns measuring off."""
    if is_disabled(environment):
        return dict(environment)
    path = environment.get(_PATH, "")
    others = [entry for entry in path.split(os.pathsep) if entry != _STARTUP] if path else []  # "": where it starts
    return dict(environment) | {VARIABLE: order.as_text(), _PATH: os.pathsep.join([_STARTUP, *others])}


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run the command in place of this process.

    Raises:
        UsageError: it cannot be run.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    program, what_next = command[0], "check its spelling and PATH"
    if program.endswith(".py"):
        what_next = f"put python before it: stepscope run -- python {program}"
    try:
        os.execvpe(program, list(command), dict(environment))
    except FileNotFoundError:
        raise UsageError("no such command", where=program, what_next=what_next) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot be run ({reason})", where=program, what_next=what_next) from None
