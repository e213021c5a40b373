"""Run directories of jobs that are over, of a given age and size."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from stepscope.core.documents.run_directory import Attempt, RunManifest

DAY = 86_400.0


def write_run(
    run: Path, *, days: float = 40.0, trace_bytes: int = 1000, ended: bool = True, more: Mapping[str, bytes] = {}
) -> Path:
    """A run of one rank that was last written so many days ago."""
    end_ns = time.time_ns() - int(days * DAY * 1e9)
    attempt = Attempt(end_ns - 10**9, end_ns if ended else None, "finished" if ended else None, 1)
    manifest = RunManifest(run.name, "h", 1, {}, 8, {}, {}, [attempt])
    files = {
        "run.json": json.dumps(asdict(manifest)).encode(),
        "steps/rank0.jsonl": b'{"index": 0, "start_ns": 1, "end_ns": 2}\n',
        "traces/step4/rank0.json.gz": bytes(trace_bytes),
        **more,
    }
    for name, content in files.items():
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(end_ns, end_ns))
    return run
