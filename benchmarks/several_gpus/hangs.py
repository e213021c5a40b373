"""Hangs of each kind on several GPUs: how soon the agent, training itself and `stepscope hang` name the rank.

Each kind hangs a fresh pair of processes under `stepscope.profile`, with torch's flight recorder on. What the ranks
leave is in DIR/hangs.tar, a line for each kind in DIR/hangs.jsonl.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.accuracy.live_hang import Call, Job, begin_job, call_of_agent, call_of_training, run_agent
from benchmarks.ranks import end, forked, wait

GOAL_SECONDS = 25.0
_GIVEN_UP_SECONDS = 45.0
_STARTS_WITHIN_SECONDS = 90.0
_ASKED_EVERY_SECONDS = 2.0
_STEP = 15
_MOST_FILE_BYTES, _MOST_TAR_BYTES = 4 << 20, 14 << 20
_RESULTS, _TAR = "hangs.jsonl", "hangs.tar"


@dataclass(frozen=True, slots=True)
class Hang:
    """A way to hang a job.

    Attributes:
        fault: of `benchmarks.accuracy.live_hang`.
        kinds: any of which is right.
        guilty: rank.
    """

    fault: str
    kinds: tuple[str, ...]
    guilty: int
    needs_gpu: bool = False


HANGS = {
    "order": Hang("swaps", ("desync",), 1),
    "host": Hang("sleeps", ("host",), 0),
    "device": Hang("kernel", ("device",), 1, needs_gpu=True),
    "missing": Hang("dies", ("host", "unknown"), 1),
    "stopped": Hang("stops", ("host", "unknown"), 1),
}
"""The first four are asked for; a stopped rank is another that is missing."""


def record_hangs(out: Path, num_ranks: int, only: Sequence[str], *, is_cpu: bool) -> int:
    """Hang a job in each way that is not recorded yet; returns 1 if the agent missed one."""
    out.mkdir(parents=True, exist_ok=True)
    done = {line["hang"] for line in _lines(out / _RESULTS)}
    chosen = [name for name in only or HANGS if name not in done and not (is_cpu and HANGS[name].needs_gpu)]
    if is_cpu:  # gloo notices a peer that died
        chosen = [name for name in chosen if name != "missing"]
    work = Path(os.environ.get("TMPDIR", "/tmp")) / f"several-gpus-hangs-{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.environ["STEPSCOPE_AGENT_SOCKET"] = f"@stepscope-hangs-{os.getpid()}"
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    told = work / "agent.jsonl"
    agent = forked(partial(run_agent, told))
    num_right = 0
    try:
        for name in chosen:
            line = _hung(name, work, told, num_ranks, "gloo" if is_cpu else "nccl")
            num_right += line["is_right"]
            with (out / _RESULTS).open("a") as file:
                file.write(json.dumps(line) + "\n")
            _keep(work, out / _TAR)
            print(json.dumps(line), flush=True)
    finally:
        end([agent])
        shutil.rmtree(work, ignore_errors=True)
    print(f"the agent named {num_right} of {len(chosen)} right within {GOAL_SECONDS:.0f} s", flush=True)
    return 0 if num_right == len(chosen) else 1


def _hung(name: str, work: Path, told: Path, num_ranks: int, backend: str) -> dict[str, Any]:
    """Hang one job; returns who named what, and when."""
    hang = HANGS[name]
    job = Job(hang.fault, num_ranks, (hang.guilty,), _STEP, 0.0, backend)
    folder = work / f"hang-{name}"
    ranks = begin_job(job, folder)
    command: dict[str, Any] | None = None
    calls: list[Call | None] = [None, None]
    stopped: float | None = None
    try:
        wait((folder / "stopped").exists, _STARTS_WITHIN_SECONDS)
        if (folder / "stopped").exists():
            stopped = (folder / "stopped").stat().st_mtime
            while time.time() < stopped + _GIVEN_UP_SECONDS:
                calls = [call_of_agent(told, folder.name, stopped), call_of_training(folder, num_ranks, stopped)]
                if command is None or not command["is_right"]:
                    command = _asked(folder, hang, stopped)
                if None not in calls and command["is_right"]:
                    break
                time.sleep(_ASKED_EVERY_SECONDS)
    finally:
        end(ranks)
    agent = calls[0]
    is_right = agent is not None and agent.ranks == job.guilty and agent.seconds <= GOAL_SECONDS
    kinds = [line.get("kind") for line in _lines(told) if line["run"] == folder.name]
    return {
        "hang": name,
        "guilty": list(job.guilty),
        "backend": backend,
        "num_ranks": num_ranks,
        "is_right": is_right,
        "is_kind_right": bool(kinds) and kinds[0] in hang.kinds,
        "agent": None if agent is None else asdict(agent) | {"kinds": kinds},
        "training": None if calls[1] is None else asdict(calls[1]),
        "command": command,
        "reached_its_step": stopped is not None,
    }


def _asked(folder: Path, hang: Hang, stopped: float) -> dict[str, Any]:
    """What `stepscope hang` says of the run now."""
    asked = time.time()
    ran = subprocess.run(
        [sys.executable, "-m", "stepscope", "hang", "--json", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said: dict[str, Any] = {"seconds": round(time.time() - stopped, 2), "took_seconds": round(time.time() - asked, 2)}
    try:
        document = json.loads(ran.stdout)
    except ValueError:
        return said | {"is_right": False, "status": ran.returncode, "error": ran.stderr[-300:]}
    verdict = document["verdict"]
    ranks = sorted(verdict["ranks"])
    said |= {"is_right": ranks == [hang.guilty], "ranks": ranks, "status": ran.returncode}
    return said | {name: verdict[name] for name in ("kind", "cause", "reasons", "confidence")}


def _keep(work: Path, path: Path) -> None:
    """All that the jobs left, small files first come."""
    partial_path = path.with_suffix(".partial")
    num_bytes = 0
    with tarfile.open(partial_path, "w") as tar:
        files = [file for file in work.rglob("*") if file.is_file() and not file.name.startswith("store")]
        for file in sorted(files, key=lambda one: one.stat().st_size):
            size = file.stat().st_size
            if size <= _MOST_FILE_BYTES and num_bytes + size <= _MOST_TAR_BYTES:
                num_bytes += size
                tar.add(file, str(file.relative_to(work)))
    partial_path.replace(path)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
