"""Fills the disk under a history, then makes room: what is lost, what is said, and whether it goes on.

`python -m benchmarks.history.store_full_disk [--folder DIR]` prints one JSON document. Without a folder it mounts a
tmpfs of 64 MiB, which needs root; a folder given must be on a small disk of its own. Three quarters of it are a file
that is removed when 100 flushes have failed. Times of samples then jump back an hour, forth a day, and back.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.history.fleet import START_NS, gpu_labels
from benchmarks.history.store_kills import num_rows
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import Question, TimeRange
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter

_NUM_GPUS = 100
_STEP_NS = 15 * 10**9
_METRIC = "stepscope_gpu_power_watts"
_SPARE_METRICS = 9


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def measure(folder: Path) -> dict[str, object]:
    """Fill, free, jump; then ask."""
    lines = _Lines()
    logging.getLogger("stepscope").addHandler(lines)
    logging.getLogger("stepscope").propagate = False
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    filler = folder / "filler"
    filler.write_bytes(bytes(free * 3 // 4))
    gpus, index, chance = gpu_labels(_NUM_GPUS), np.arange(_NUM_GPUS, dtype=np.int32), np.random.default_rng(0)
    now, written, failed, freed_after = [START_NS], 0, 0, -1
    writer = HistoryWriter(folder / "history", clock=lambda: now[0])

    def sample(time_ns: int) -> bool:
        nonlocal written
        now[0] = time_ns
        columns = {f"{_METRIC}_{spare}": chance.random(_NUM_GPUS) for spare in range(_SPARE_METRICS)}
        columns[_METRIC] = np.full(_NUM_GPUS, float(written))
        writer.append(SampleBlock(gpus, index, np.full(_NUM_GPUS, time_ns), columns))
        written += 1
        is_kept = writer.flush()
        for _ in range(20):
            if not writer.maintain():
                break
        return is_kept

    time_ns = START_NS
    while written < 20_000:
        time_ns += _STEP_NS
        failed += not sample(time_ns)
        if failed == 100 and freed_after < 0:
            filler.unlink()
            freed_after = written
        if freed_after >= 0 and written > freed_after + 200:
            break
    for jump in (-3600, 86400, -86400):
        time_ns += jump * 10**9
        for _ in range(40):
            time_ns += _STEP_NS + 7 * 10**6
            sample(time_ns)
    writer.close()
    history = history_at(folder / "history")
    first_after = history.range(Question(_METRIC, ()), TimeRange(START_NS, START_NS + freed_after * _STEP_NS, _STEP_NS))
    missing = freed_after - int(np.count_nonzero(~np.isnan(first_after.values)))
    return {
        "disk_mib": round(free / 2**20, 1),
        "flushes": written,
        "failed_flushes": failed,
        "samples": written * _NUM_GPUS,
        "rows_missing": written * _NUM_GPUS - num_rows(history),
        "steps_missing_before_room": missing,
        "lines": lines.lines,
    }


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.folder:
        print(json.dumps(measure(arguments.folder), indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
        try:
            print(json.dumps(measure(Path(folder)), indent=1))
        finally:
            subprocess.run(["umount", folder], check=True)


if __name__ == "__main__":
    main()
