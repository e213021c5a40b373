"""Launch of a command whose Python processes profile themselves, and the options passed to them.

The command replaces this process instead of becoming its child, so signals, job control and exit code are its own. The
options travel in one environment variable.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from stepscope.core.errors import UsageError
from stepscope.training.captures.schedule import Schedule
from stepscope.training.entry_points import is_disabled

_STARTUP = str(Path(__file__).resolve().parent / "startup")
_PATH = "PYTHONPATH"


def launch_environment(options: RunOptions, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment in which `stepscope run` starts the command; the given one when STEPSCOPE_DISABLE turns it off."""
    if is_disabled(environment):
        return dict(environment)
    path = environment.get(_PATH, "")
    others = [entry for entry in path.split(os.pathsep) if entry != _STARTUP] if path else []  # "": where it starts
    return dict(environment) | {OPTIONS_VARIABLE: options.as_text(), _PATH: os.pathsep.join([_STARTUP, *others])}


def replace_process(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run the command of `stepscope run` in place of this process.

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


OPTIONS_VARIABLE = "STEPSCOPE_ZERO_CODE"
"""Without it nothing is measured: the process that measures takes it out of its own environment, so that what it
starts in turn (compilers, tools, another training) does not write into the same run."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of `stepscope run`, with the meaning that `stepscope.profile` gives them.

    Attributes:
        out: absolute, as a script may change its directory.
        schedule: None for profile()'s default.
    """

    out: str
    run: str | None
    ranks: str | list[int]
    schedule: Schedule | None
    with_stack: bool
    reduce: str | None = None
    keep_traces: str | None = None

    def as_text(self) -> str:
        return json.dumps(asdict(self))


def take_options(environment: MutableMapping[str, str]) -> RunOptions | None:
    """Zero code: options that `stepscope run` passed to this process by its environment, and removed from it.

    None when there are none.

    Raises:
        ValueError, TypeError: it was written by a stepscope of another version.
    """
    text = environment.pop(OPTIONS_VARIABLE, None)
    if text is None:
        return None
    fields = json.loads(text)
    schedule = fields["schedule"]
    return RunOptions(**fields | {"schedule": None if schedule is None else Schedule(**schedule)})
