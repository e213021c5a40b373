"""Process beside a rank that reduces its traces to views, at the lowest priority.

`profile(reduce="view")` starts it, so that training's own process loads nothing. It prints one line for each trace that
stays as it is against the wish, and why.

    python -m stepscope.workflow.reduction_process PARENT_PID RANK [[FIRST, LAST], ...] outliers|all|none TRACE...
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stepscope.core.documents.run_directory import KeepTraces, RankFile, trace_path, view_path
from stepscope.core.errors import StepscopeError
from stepscope.core.process import end_after_parent, give_way

_AFTER_TRAINING_SECONDS = 300.0
"""Then a trace that is not reduced stays: what the job's node is given to may be taken back any time."""
_SETTLES_SECONDS = 2.5
"""A trace this old has a stamp that no later write leaves alone (`inputs.trace_stamps`)."""
_TURN_SECONDS = 600.0
_OTHERS_SECONDS = 900.0
_LOOK_SECONDS = 0.5


def main(arguments: Sequence[str]) -> int:
    """Reduce the traces; returns the exit code, 1 where one stays against the wish."""
    parent, rank, runs, keep, *paths = arguments
    give_way()
    end_after_parent(int(parent), _AFTER_TRAINING_SECONDS)
    ranks = [each for first, last in json.loads(runs) for each in range(first, last + 1)]
    failed = [words for path in paths if (words := _reduce(Path(path), int(rank), ranks, KeepTraces(keep)))]
    with suppress(OSError):  # training has ended
        sys.stdout.writelines(f"{words}\n" for words in failed)
        sys.stdout.flush()
    return 1 if failed else 0


def _reduce(trace: Path, rank: int, ranks: Sequence[int], keep: KeepTraces) -> str:
    """Make a trace's view; the lowest rank that is seen here then chooses which of the capture's traces stay.

    Returns why the trace stays as it is; empty where nothing failed.
    """
    run = trace.parent.parent.parent
    seen = [each for each in ranks if (run / RankFile.STEPS.path(each)).exists()]
    chooses = keep is not KeepTraces.ALL and rank == min(seen, default=rank)
    try:
        _wait(lambda: time.time() - os.stat(trace).st_ctime > _SETTLES_SECONDS, _SETTLES_SECONDS)
        if chooses:
            others = [trace.with_name(trace_path(0, each).name) for each in seen if each != rank]
            _wait(lambda: all((run / view_path(other)).exists() for other in others), _OTHERS_SECONDS)
        with _turn():
            from stepscope.workflow.views.reduction import make_view, reduce_capture  # takes long: in its turn

            make_view(trace)
        if chooses:
            reduce_capture(trace, rank, seen, keep)
    except ImportError as error:
        return f'{trace}: views need {error.name}, which is not installed here; pip install "stepscope[analyze]"'
    except StepscopeError as error:
        return str(error)
    except (OSError, MemoryError) as error:
        return f"{trace}: {type(error).__name__} {error}".rstrip()
    return ""


def _wait(is_so: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)


@contextmanager
def _turn() -> Iterator[None]:
    """One process of this user on this node at a time, as each needs the memory of its trace.

    A name in the kernel, which goes with the process that has it. Who waits too long goes ahead.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as turn:
        _wait(lambda: _is_taken(turn), _TURN_SECONDS)
        yield


def _is_taken(turn: socket.socket) -> bool:
    try:
        turn.bind(f"\0stepscope-views-{os.geteuid()}")
    except FileNotFoundError:  # an operating system without such names
        return True
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
