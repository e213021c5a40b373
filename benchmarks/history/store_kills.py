"""Kills writers of a history with SIGKILL at random moments, while it is read; nothing that was flushed may be lost.

`python -m benchmarks.history.store_kills [--kills 50] [--folder DIR]` prints one JSON document. Each writer goes on
where the killed one ended, at full speed: an hour of samples takes some seconds, so that kills hit segments,
compaction, lower resolution and removal alike. A reader asks all the time, and after each kill, before and after the
next writer has recovered the place: no row may be missing or twice, and each minute has its mean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.history.fleet import START_NS, gpu_labels
from stepscope.store.history import maintenance
from stepscope.store.history.catalog import RAW
from stepscope.store.history.embedded import EmbeddedHistory, history_at
from stepscope.store.history.questions import Question, TimeRange
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter

_NUM_GPUS = 16
_STEP_NS = 5 * 10**9
_OF_FLUSH = 3
_METRIC = "stepscope_gpu_power_watts"


def write(folder: str, first: int) -> None:
    """Write samples from number `first` on until killed; print the number of the last one that is on the disk."""
    maintenance.GRACE_SECONDS = 1  # so that removal is killed too; the reader reads again
    now = [START_NS]
    writer = HistoryWriter(folder, clock=lambda: now[0])
    gpus, index = gpu_labels(_NUM_GPUS), np.arange(_NUM_GPUS, dtype=np.int32)
    for sample in itertools.count(first):
        now[0] = START_NS + (sample + 1) * _STEP_NS
        writer.append(
            SampleBlock(gpus, index, np.full(_NUM_GPUS, now[0]), {_METRIC: np.full(_NUM_GPUS, float(sample))})
        )
        if sample % _OF_FLUSH == _OF_FLUSH - 1:
            if writer.flush():
                print(sample + 1, flush=True)
            while writer.maintain():
                pass


def num_rows(history: EmbeddedHistory) -> int:
    """Rows as they came that the history holds now, in files and segments."""
    state = history._files.state()
    files = sum(file.rows for file in state.catalog.files if file.tier == RAW)
    return files + sum(len(rows) for segment in state.segments.values() for rows in segment.tables)


def trouble(history: EmbeddedHistory, flushed: int) -> str:
    """What is wrong with the history, if anything: it has all before sample `flushed` once; one more flush may be."""
    rows = num_rows(history)
    if rows not in (flushed * _NUM_GPUS, (flushed + _OF_FLUSH) * _NUM_GPUS):
        return f"{rows} rows instead of {flushed * _NUM_GPUS}"
    return trouble_of_minutes(history, flushed)


def trouble_of_minutes(history: EmbeddedHistory, flushed: int) -> str:
    """What is wrong with the minutes before sample `flushed`, if anything."""
    minutes = flushed // 12
    if not minutes:
        return ""
    answer = history.range(Question(_METRIC, ()), TimeRange(START_NS, START_NS + minutes * 60 * 10**9, 60 * 10**9))
    expected = np.arange(minutes) * 12 + 5.5
    if answer.values.shape != (1, minutes) or np.abs(answer.values[0] - expected).max() > 1e-6:
        return "a minute has another mean"
    return ""


def measure(folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Kill writers, and check."""
    chance = random.Random(seed)
    flushed, troubles, checks, unfinished = 0, list[str](), Counter[str](), 0
    begin = time.monotonic()
    for _ in range(kills):
        command = [
            sys.executable,
            "-m",
            "benchmarks.history.store_kills",
            "--write",
            str(folder),
            "--first",
            str(flushed),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            child.stdout.readline()  # it has begun
            flushed += _OF_FLUSH
            end = time.monotonic() + chance.uniform(0, 3)
            history = history_at(folder)
            while time.monotonic() < end:
                found = trouble_of_minutes(history, flushed)
                checks["while written"] += 1
                troubles += [f"while written, sample {flushed}: {found}"] if found else []
                flushed = max(flushed, int(child.stdout.readline()))
            child.kill()
            lines = child.stdout.read().split()
        flushed = max([flushed, *map(int, lines)])
        left = [path.name for path in folder.rglob("*.partial")]
        unfinished += bool(left)
        history = history_at(folder)
        found = trouble(history, flushed)
        if not found:
            flushed = num_rows(history) // _NUM_GPUS
            HistoryWriter(folder, clock=lambda: START_NS).close()
            found = trouble(history_at(folder), flushed)
        checks["after a kill"] += 2
        if found:
            troubles.append(f"after sample {flushed}: {found}")
            break
    return {
        "kills": kills,
        "samples": flushed * _NUM_GPUS,
        "hours": round(flushed / 720, 1),
        "checks": checks,
        "troubles": troubles,
        "kills_that_left_a_temporary_file": unfinished,
        "set_aside": len(list(folder.glob("damaged/*"))),
        "seconds": round(time.monotonic() - begin, 1),
    }


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write, arguments.first)
        return
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(measure(arguments.folder or Path(temporary), arguments.kills, arguments.seed), indent=1))


if __name__ == "__main__":
    main()
