"""Training jobs that run out of GPU memory, each for a known reason, and record the truth. One process per job.

    python -m benchmarks.accuracy.out_of_memory_jobs JOB DIRECTORY

`truth.json` beside the run has the part of the step in which it ended, torch's message, and torch's counters at the
failure and at the end of a step. A memory limit of torch keeps jobs small; those without one need the whole GPU.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stepscope

TRUTH_FILE = "truth.json"
HOLDER = "holder"
SNAPSHOT_STEP = 4
_LARGE_STEP = 8
_FILL_STEP = 2
_MIB, _GIB = 1 << 20, 1 << 30
_DEVICE = "cuda"
_INPUTS, _WIDTH = 64, 1024
_ROWS = 4096
_BYTES_A_ROW = 4 * _WIDTH
_HELD_SHARE = 0.8
_COLUMN_BYTES, _CUT_BYTES = 96 * _MIB, 56 * _MIB


@dataclass(frozen=True)
class Job:
    """Training job and its right diagnosis.

    Attributes:
        remedy: what the first change begins with; None where nothing is known of what the memory was for.
        limit_gib: None: all of the GPU.
        large_rows: of the batch of one step; of all others it is small.
        num_layers, width: of the model; each layer's output is kept for the backward pass.
        memory: as `stepscope.profile` takes it.
        begins_inside: CUDA is first used inside the with block, and the first step fails.
        has_company: another process has most of the GPU.
    """

    name: str
    cause: str
    remedy: str | None
    limit_gib: float | None = None
    large_rows: int = _ROWS
    num_layers: int = 3
    width: int = _WIDTH
    memory: str = f"{SNAPSHOT_STEP}+history"
    begins_inside: bool = False
    has_company: bool = False

    @property
    def kept_bytes(self) -> int:
        """Bytes that each step keeps."""
        return _ROWS * _BYTES_A_ROW if self.cause == "leak" else 0


_RECOMPUTE = "recompute activations"
JOBS = {
    job.name: job
    for job in (
        Job("growth", "leak", "do not keep what is allocated at train (", limit_gib=1),
        Job(
            "fragmentation",
            "fragmentation",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            limit_gib=3,
            large_rows=512 * _MIB // _BYTES_A_ROW,
        ),
        Job("capacity", "capacity", _RECOMPUTE, limit_gib=4, large_rows=int(0.7 * 4 * _GIB) // _BYTES_A_ROW),
        Job("backward", "capacity", _RECOMPUTE, limit_gib=4, large_rows=int(4 * _GIB / 4.5) // _BYTES_A_ROW),
        Job("optimizer", "capacity", "ZeRO 3", limit_gib=3.4, num_layers=5, width=8192),
        Job(
            "first_step",
            "capacity",
            None,
            limit_gib=2,
            large_rows=int(0.7 * 2 * _GIB) // _BYTES_A_ROW,
            memory="oom",
            begins_inside=True,
        ),
        Job("whole_gpu", "capacity", _RECOMPUTE, large_rows=1 << 20, num_layers=64),
        Job(
            "other_process",
            "other_process",
            "end the other processes",
            large_rows=1 << 20,
            num_layers=64,
            has_company=True,
        ),
    )
}


def main() -> int:
    """Run the job out of memory; return 1 if it does not."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    if name == HOLDER:
        hold()
        return 0
    told: dict[str, Any] = {"phase": "unknown", "message": None, "at_failure": None, "quiet": None}
    try:
        train(JOBS[name], folder, told)
    except torch.OutOfMemoryError as error:
        told["message"] = str(error)
    (folder / name / TRUTH_FILE).write_text(json.dumps(told, indent=1) + "\n")
    return 0 if told["message"] else 1


def hold() -> None:
    """Hold most of the GPU until standard input ends."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(int(_HELD_SHARE * free), dtype=torch.uint8, device=_DEVICE)
    print(f"holds {held.numel() / _GIB:.1f} GiB", flush=True)
    sys.stdin.read()


def train(job: Job, folder: Path, told: dict[str, Any]) -> None:
    """Train without end; `told` holds the current part of the step, for the time without memory."""
    if not job.begins_inside:
        limit(job)
        torch._C._cuda_attach_out_of_memory_observer(  # type: ignore[attr-defined]  # CUDA builds only
            lambda *_: told.update(at_failure=counters())
        )
    with stepscope.profile(job.name, folder, stepscope.every(100_000), memory=job.memory) as prof:
        if job.begins_inside:
            limit(job)
        model = make_model(job)
        optimizer = (torch.optim.AdamW if job.name == "optimizer" else torch.optim.SGD)(model.parameters(), lr=1e-3)
        kept, table = [], []
        for step in count():
            told["phase"] = "unknown"
            if job.cause == "fragmentation" and step == _FILL_STEP:
                table = fill(job)
            is_large = job.begins_inside or step == _LARGE_STEP
            rows = job.large_rows if is_large else _ROWS * _WIDTH // job.width
            batch = torch.randn(rows, _INPUTS, device=_DEVICE)
            labels = torch.zeros(rows, dtype=torch.long, device=_DEVICE)
            told["phase"] = "forward"
            output = model(batch)
            loss = nn.functional.cross_entropy(output, labels)
            told["phase"] = "backward"
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it so
            told["phase"] = "optimizer"
            optimizer.step()
            optimizer.zero_grad()
            if job.cause == "leak":
                kept.append(output.detach())
            told["kept"] = len(kept), len(table)
            if step == SNAPSHOT_STEP:
                wait_in_vain()
                before = counters()
            prof.step()
            if step == SNAPSHOT_STEP:
                told["quiet"] = {"before": before, "after": counters()}


def limit(job: Job) -> None:
    """Limit the memory that torch may use."""
    _, total = torch.cuda.mem_get_info()
    if job.limit_gib is not None:
        torch.cuda.set_per_process_memory_fraction(job.limit_gib * _GIB / total)


def make_model(job: Job) -> nn.Module:
    """Model of wide layers."""
    widths = [_INPUTS, *[job.width] * job.num_layers]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, device=_DEVICE), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fill(job: Job) -> list[torch.Tensor]:
    """Load a table, then cut it column by column; torch keeps the pieces."""
    torch.cuda.empty_cache()
    assert job.limit_gib is not None
    room = int(job.limit_gib * _GIB) - torch.cuda.memory_reserved() - 160 * _MIB
    table = [torch.empty(_COLUMN_BYTES, dtype=torch.uint8, device=_DEVICE) for _ in range(room // _COLUMN_BYTES)]
    for number, column in enumerate(table):
        table[number] = column[:_CUT_BYTES].clone()
    return table


def wait_in_vain() -> None:
    """A block freed while another stream may use it is active, and not allocated, until torch next allocates."""
    block = torch.empty(_MIB, dtype=torch.uint8, device=_DEVICE)
    block.record_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]  # torch leaves it so
    del block
    torch.cuda.synchronize()


def counters() -> dict[str, int]:
    """Counters of torch's allocator."""
    found = torch.cuda.memory_stats()
    return {name: found[f"{name}_bytes.all.current"] for name in ("allocated", "reserved", "active")}


if __name__ == "__main__":
    raise SystemExit(main())
