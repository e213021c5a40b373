"""Neighbours of a job of the labelled runs: processes that take its CPU core or its GPU, when they are let."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

_BUSY = "while True: pass"

_ON_GPU = """
import sys
import torch
torch.cuda.set_device(int(sys.argv[1]))
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(8):
        a @ a
    torch.cuda.synchronize()
"""


class Neighbours:
    """Processes that work or are stopped."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._work = True
        atexit.register(self.end)
        self.let(work=False)

    def let(self, *, work: bool) -> None:
        """Let them go on, or stop them; the GPU's queue empties meanwhile."""
        if work == self._work:
            return
        self._work = work
        for process in self._processes:
            process.send_signal(signal.SIGCONT if work else signal.SIGSTOP)
        time.sleep(0.1)

    def end(self) -> None:
        atexit.unregister(self.end)
        for process in self._processes:
            process.kill()
            process.wait()


def of_core(num: int) -> Neighbours:
    """Busy processes on one core, to which this process is bound too."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return Neighbours([subprocess.Popen([sys.executable, "-c", _BUSY], text=True) for _ in range(num)])


def of_gpu(index: int = 0) -> Neighbours:
    """A process that multiplies matrices on a GPU."""
    process = subprocess.Popen([sys.executable, "-c", _ON_GPU, str(index)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return Neighbours([process])
