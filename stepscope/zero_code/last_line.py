"""What does a process that measured itself say at its end, and on which rank?"""

from __future__ import annotations

import sys
from pathlib import Path

from stepscope.core.counting import counted

NO_UPDATE = "an optimizer was made, but no update of it was seen, so nothing was measured"
IN_COMPILED_CODE = (
    "updates were made where their ends are not seen, as in a compiled step, so nothing was measured; "
    "next: call prof.step() of a stepscope.profile after each"
)


def speaks_here() -> bool:
    """Rank 0 says a line, no other does; asked as long as torch.distributed is there."""
    from stepscope.training.run.identity import identify

    return identify().rank == 0


def say_where(run_directory: Path | None, num_steps: int) -> None:
    """Where the run is; nothing when there is none, as measuring stopped and said why."""
    if run_directory is not None:
        say(f"{counted(num_steps, 'step')} measured; next: stepscope analyze {run_directory}")


def say(what: str) -> None:
    """One line on stderr, if there is one."""
    try:
        sys.stderr.write(f"stepscope: {what}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # closed, or not there
        return
