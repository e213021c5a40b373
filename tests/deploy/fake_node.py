"""`stepscope` as a program on a node whose CUDA devices are fake; of its NVML the environment says which it is."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from stepscope.cli import main
from stepscope.workflow.preflight import phases
from stepscope.workflow.preflight.workers import WorkerPrograms

_DEVICES = Path(__file__).parents[1] / "workflow" / "preflight" / "fake_devices.py"

if __name__ == "__main__":
    phases.run_preflight = partial(
        phases.run_preflight, programs=WorkerPrograms(device=(sys.executable, str(_DEVICES)))
    )
    main(sys.argv[1:])
