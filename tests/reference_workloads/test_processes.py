"""Does no rank outlive the run, however it ends?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.interrupts import default_interrupt

pytest.importorskip("torch")
if not Path("/proc/self/task").is_dir():
    pytest.skip("looks at /proc", allow_module_level=True)

_COMMAND = [sys.executable, "-m", "stepscope", "workload", "run", "gpt", "--pp", "2", "--steps", "100000"]


@contextmanager
def _running(*options: str, temporary: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A workload in a process group of its own that has finished its first step, and its ranks' process ids."""
    process = subprocess.Popen(
        [*_COMMAND, "--no-profile", "--device", "cpu", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=default_interrupt,
        env=os.environ if temporary is None else {**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("step   0")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield process, [int(child) for child in children]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _alive(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _all_end(process_ids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(_alive, process_ids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(_alive, process_ids))


def test_interrupt_ends_all_ranks_and_exits_with_130() -> None:
    with _running() as (process, ranks):
        assert len(ranks) == 2
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "Traceback" not in errors
        assert _all_end(ranks)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_leaves_no_orphans_and_no_files(tmp_path: Path, how: signal.Signals) -> None:
    with _running(temporary=tmp_path) as (process, ranks):
        process.send_signal(how)
        process.wait()
        assert _all_end(ranks)
    assert list(tmp_path.glob("stepscope-*")) == []


def test_a_killed_rank_ends_the_others_with_one_line_that_names_it() -> None:
    with _running() as (process, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 4
        assert errors.strip().splitlines()[-1] == "stepscope: rank 1 was killed by SIGKILL; all 2 ranks were ended"
        assert "Traceback" not in errors
        assert _all_end(ranks)
