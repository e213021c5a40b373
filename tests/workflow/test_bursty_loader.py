"""A real loader with four workers that are slightly too slow: the verdict recognizes the rhythm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stepscope.core.vocabulary import Cause, Reason
from stepscope.workflow.analyze import analyze

NUM_WORKERS = 4
JOB = f"""
import sys, time
import torch
import stepscope
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 44
    def __getitem__(self, index):
        time.sleep(0.36)  # four workers: a batch every 90 ms; long beside what other work on the machine costs
        return torch.ones(4)

loader = DataLoader(Slow(), num_workers={NUM_WORKERS}, prefetch_factor=1)
schedule = stepscope.every(100, warmup=1, active=12, first=30)
with stepscope.profile(run="bursty", out=sys.argv[1], schedule=schedule) as prof:
    for batch in prof.data(loader):
        time.sleep(0.03)
        batch.sum().item()
        prof.step()
"""


def test_waits_come_with_the_number_of_workers_as_their_period(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", JOB, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (run,) = [path.parent for path in tmp_path.rglob("run.json")]
    analysis = analyze([str(run)], keep=False).analysis
    (row,) = [row for row in analysis.root_causes if row.cause is Cause.DATA_LOADING]
    assert row.reasons == [Reason.BURSTY]
    assert {e.metric: e.value for e in row.evidence}["period_of_waits"] == NUM_WORKERS
