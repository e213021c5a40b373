"""Own workload on 8 GPUs: tensor x pipeline x data parallel, 2 each, and ZeRO 1 to 3, with faults and without."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.labelled_runs.archive import ArchiveFullError, pack
from benchmarks.several_gpus.results import FAILED, RECORDED, Result, Results

LANE = "workloads"
_MOST_TARS = 4
_RUN_SECONDS = 90.0
_NUM_STEPS = 40
_MESH = ("--tp", "2", "--pp", "2", "--dp", "2")
_FLAT = ("--dp", "8")
_HEALTHY = ["compute_bound", "memory_bound", "latency_bound"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A run of `stepscope workload run gpt`.

    Attributes:
        options: its layout and faults.
        cause: of its fault; empty where nothing is wrong.
    """

    name: str
    options: tuple[str, ...]
    cause: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


def _faulty(name: str, layout: tuple[str, ...], fault: str, cause: str, ranks: tuple[int, ...] = ()) -> Workload:
    return Workload(name, (*layout, "--inject", fault), (cause,), ranks)


_1F1B = (*_MESH, "--schedule", "1f1b", "--micro-batches", "8")
WORKLOADS: dict[str, Workload] = {
    one.name: one
    for one in (
        Workload("mesh_1f1b", (*_1F1B, "--zero", "1")),
        _faulty("mesh_few", _1F1B, "few_micro_batches", "pipeline_bubble"),
        _faulty("mesh_straggler", _1F1B, "straggler:rank=5", "straggler", (5,)),
        _faulty("mesh_uneven", _1F1B, "uneven_stages", "imbalance"),
        Workload("mesh_interleaved", (*_MESH, "--schedule", "interleaved", "--micro-batches", "8", "--zero", "2")),
        Workload("mesh_zero3", (*_MESH, "--schedule", "1f1b", "--micro-batches", "8", "--zero", "3")),
        _faulty("flat_loader", _FLAT, "slow_loader", "data_loading"),
        _faulty("flat_tiny_buckets", (*_FLAT, "--zero", "0"), "tiny_buckets", "communication"),
        _faulty("flat_transport", _FLAT, "wrong_transport", "communication"),
        _faulty("flat_no_prefetch", (*_FLAT, "--zero", "3"), "no_prefetch", "communication"),
        Workload("flat_zero1", (*_FLAT, "--zero", "1")),
    )
}
"""The most important first."""


def record_workloads(out: Path, only: Sequence[str], seconds: float, device: str) -> int:
    """Record what is not recorded yet; returns 1 if some is missing."""
    began, work = time.monotonic(), Path(os.environ.get("TMPDIR", "/tmp")) / f"several-gpus-workloads-{os.getpid()}"
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out)
    chosen = [WORKLOADS[name] for name in only or WORKLOADS if not results.is_recorded(name)]
    for workload in chosen:
        left = seconds - (time.monotonic() - began)
        if left < _RUN_SECONDS / 2:
            break
        folder, started = work / workload.name, time.time()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            entry = _recorded(workload, folder, device, left)
            (folder / "truth.json").write_text(json.dumps({workload.name: entry}, indent=1))
            figures = entry | {"bytes": pack(workload.name, folder, out, LANE, _MOST_TARS)}
            result = Result(workload.name, RECORDED, started, time.time() - started, figures)
        except (RuntimeError, ArchiveFullError, OSError, subprocess.TimeoutExpired) as error:
            result = Result(workload.name, FAILED, started, time.time() - started, trouble=str(error)[-3000:])
        results.add(result)
        print(
            f"{workload.name} {result.state} in {result.seconds:.1f} s: {result.trouble or result.figures}", flush=True
        )
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(results.is_recorded(one.name) for one in chosen) else 1


def _recorded(workload: Workload, folder: Path, device: str, seconds: float) -> dict[str, Any]:
    """Bare steps as it is and without its fault, then the profiled run; returns its truth."""
    until = time.monotonic() + min(seconds, 3 * _RUN_SECONDS)
    bare = [_run(workload, device, until, "--no-profile") for _ in range(1)]
    fixed = [_run(workload, device, until, "--no-profile", "--control")] if workload.cause else []
    profiled = _run(workload, device, until, "--out", str(folder), "--run-name", workload.name)
    entry: dict[str, Any] = {
        "what": " ".join(workload.options),
        "bare_ms": round(bare[0], 2),
        "fixed_ms": round(fixed[0], 2) if fixed else None,
        "profiled_ms": round(profiled, 2),
        "fix": "control" if fixed else None,
        "num_ranks": 8,
        "blocks_ms": {"fault" if fixed else "none": bare} | ({"none": fixed} if fixed else {}),
        "launch_ms": 0.0,
        "cause": list(workload.cause) or _HEALTHY,
        "reasons": [],
        "bottleneck": True if fixed else None,
        "share": round(1 - fixed[0] / bare[0], 3) if fixed else None,
    }
    return entry | ({"ranks": list(workload.ranks)} if workload.ranks else {})


def _run(workload: Workload, device: str, until: float, *options: str) -> float:
    """Mean step of a run, ms."""
    command = [sys.executable, "-m", "stepscope", "workload", "run", "gpt", *workload.options, *options, "--json"]
    small = device == "cpu"
    command += ["--preset", "tiny" if small else "node", "--device", device]
    command += ["--steps", "9" if small else str(_NUM_STEPS)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        answer, errors = process.communicate(timeout=max(until - time.monotonic(), 1.0))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} ended with {process.returncode}: {errors[-2000:]}")
    return float(json.loads(answer)["step_ms"])
