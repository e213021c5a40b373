"""kill -9 of a recorder at random moments against a live agent: nothing kept is lost, at most 15 s are missing.

    python -m benchmarks.history.recorder_kills [--kills 20] [--longest 40]

A real agent on the fake driver of the tests; `stepscope history run --interval 1` is killed after a random time and
started again. After each kill the history is read: every scrape that it had before is still there, and the newest one
is at most 15 s older than the kill.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.agent.real_agent import started_agent
from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import GroupBy, Question, TimeRange
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_SECOND_NS = 10**9
_MOST_SECONDS = 15.0


def _seconds_kept(store: Path, begin_ns: int) -> set[int]:
    """Seconds, since the epoch, with a scrape in the history."""
    span = TimeRange(begin_ns, time.time_ns() // _SECOND_NS * _SECOND_NS + 5 * _SECOND_NS, _SECOND_NS)
    try:
        answer = history_at(store).range(Question("up", (GroupBy.NODE,)), span)
    except (DataError, UsageError):  # nothing was written yet
        return set()
    if not len(answer.values):
        return set()
    return set((answer.times_ns[np.flatnonzero(~np.isnan(answer.values[0]))] // _SECOND_NS).tolist())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, default=40.0, help="seconds until a kill, at most")
    options = parser.parse_args()
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = FakeNvml(build_fake_nvml(folder / "library"), folder / "nvml.conf")
        machine.add(profiles.h100(0))
        machine.write()
        environment = machine.environment() | {"STEPSCOPE_AGENT__KINETO__ENABLED": "false"}
        store, begin_ns = folder / "history", time.time_ns() // _SECOND_NS * _SECOND_NS
        kept, lost, missing, errors = set[int](), 0, list[float](), list[str]()
        with started_agent(folder, environment=environment) as agent:
            command = [sys.executable, "-m", "stepscope", "history", "run", "--history", str(store), "--interval", "1"]
            command += ["--agent", f"127.0.0.1:{agent.port}"]
            for _ in range(options.kills):
                began = time.time()
                with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as recorder:
                    time.sleep(chance.uniform(0.5, options.longest))
                    recorder.kill()
                    killed = time.time()
                    assert recorder.stderr is not None
                    errors += [line for line in recorder.stderr if "Traceback" in line or "Error" in line]
                now = _seconds_kept(store, begin_ns)
                lost += len(kept - now)
                kept = now
                if killed - began > _MOST_SECONDS + 3.0:
                    missing.append(killed - max(kept))
        print(f"{options.kills} kills: {lost} seconds lost of {len(kept)} kept; after a kill the newest scrape was "
              f"{max(missing, default=0.0):.1f} s old at most ({len(missing)} kills after more than 18 s); "
              f"lines with an error {len(errors)}")  # fmt: skip


if __name__ == "__main__":
    main()
