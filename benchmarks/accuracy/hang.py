"""Accuracy of `stepscope hang`: jobs of 4 to 16 gloo ranks, each hung on purpose, judged by their flight recorders.

    python -m benchmarks.accuracy.hang [--sets 36] [--seed 0] [--parallel 1] [-o DIR]
    python -m benchmarks.accuracy.hang --backend nccl --sets 14 --parallel 4 [-o DIR]

Each set is real training communication: a world group, tensor-parallel and data-parallel groups, some steps of
all-reduces, then one fault. After a while each rank writes its flight recorder into a run directory, as a watchdog
would. The truth is stored beside it: a set is right if kind and ranks are exactly equal. So is the output of ranks.
Needs torch with gloo; or with NCCL and two GPUs, one for each of 2 ranks. There the host waits for its GPU at the end
of each step, or in every second round of faults ("ahead") never.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as recorder

from benchmarks.ranks import FOR_EVER, barrier, device_of, end, forked, occupy_gpu, running, wait
from stepscope.core.documents.run_directory import FLIGHT_FOLDER, RUN_FILE, RunManifest
from stepscope.core.errors import DataError
from stepscope.store.documents import encode_document
from stepscope.workflow.run_records import read_hang

RIGHT_GOAL = 0.95
LONGEST_SECONDS = 1.0
_STEPS = 6
_DUMP_SECONDS = {"gloo": 4.0, "nccl": 8.0}
_LONGEST_SET_SECONDS = 90.0
_LAYOUTS = {"gloo": ((2, 2), (4, 2), (2, 4), (4, 4), (8, 2), (1, 8)), "nccl": ((2, 1), (1, 2))}
"""Tensor-parallel times data-parallel ranks."""


@dataclass(frozen=True)
class Case:
    """Job with its truth; `kind` is None for a job without a hang."""

    fault: str
    tp: int
    dp: int
    guilty: tuple[int, ...]
    step: int
    kind: str | None
    backend: str = "gloo"
    is_ahead: bool = False

    @property
    def name(self) -> str:
        """Also its folder's."""
        name = f"{self.fault}-{self.tp}x{self.dp}-{'_'.join(map(str, self.guilty)) or 'none'}-step{self.step}"
        return name + "-ahead" * self.is_ahead


def cases(number: int, seed: int, backend: str) -> list[Case]:
    """Draw so many jobs, with the faults in turn."""
    chance = random.Random(seed)
    faults = [fault for fault in _FAULTS if fault != ("kernel" if backend == "gloo" else "two_sleep")]
    made: dict[str, Case] = {}
    index = 0
    while len(made) < number:
        fault, is_ahead = faults[index % len(faults)], backend == "nccl" and bool(index // len(faults) % 2)
        layouts = [layout for layout in _LAYOUTS[backend] if fault != "calls_other" or layout[0] > 1]
        tp, dp = chance.choice(layouts)
        guilty = chance.sample(range(tp * dp), {"two_sleep": 2, "healthy": 0}.get(fault, 1))
        step = chance.randrange(1, _STEPS - 1)
        case = Case(fault, tp, dp, tuple(sorted(guilty)), step, _FAULTS[fault], backend, is_ahead)
        made.setdefault(case.name, case)
        index += 1
    return list(made.values())


def main() -> int:
    """Print the table; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=36)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--parallel", type=int, default=1, help="number of parallel sets")
    parser.add_argument("-o", "--output", type=Path, help="folder in which the dumps are kept")
    options = parser.parse_args()
    output = options.output or Path(tempfile.mkdtemp())
    made = cases(options.sets, options.seed, options.backend)
    right: dict[str, list[int]] = {case.fault: [0, 0] for case in made}
    slowest = 0.0
    for begin in range(0, len(made), options.parallel):
        together = made[begin : begin + options.parallel]
        record(together, output)
        for case in together:
            is_right, seconds = _judged(case, output / case.name)
            slowest = max(slowest, seconds)
            right[case.fault][0] += is_right
            right[case.fault][1] += 1
    for fault, (so, of) in right.items():
        print(f"{fault:12} {_FAULTS[fault] or 'no hang':9} {so:3} of {of}")
    so, of = map(sum, zip(*right.values(), strict=True))
    print(f"all          {'':9} {so:3} of {of}; slowest answer {slowest:.2f} s")
    return 0 if so >= RIGHT_GOAL * of and slowest <= LONGEST_SECONDS else 1


def _judged(case: Case, folder: Path) -> tuple[bool, float]:
    """Whether the answer is right, and its seconds; errors are printed."""
    begin = time.process_time()
    try:
        verdict = read_hang([str(folder)]).verdict
    except DataError as error:
        print(f"{case.name}: {error}; see {folder}/rank*.log", file=sys.stderr, flush=True)
        return False, 0.0
    seconds = time.process_time() - begin
    is_right = verdict.kind == case.kind and tuple(verdict.ranks) == case.guilty
    if not is_right:
        said = f"{verdict.cause} {verdict.kind} {verdict.ranks}: {verdict.summary}"
        print(f"{case.name}: {said} ({seconds:.2f} s)", file=sys.stderr, flush=True)
    return is_right, seconds


def record(together: list[Case], output: Path) -> None:
    """Run the jobs side by side in processes of their own, and leave dumps and truth in a folder of each."""
    ranks = [process for case in together for process in _begin(case, output / case.name)]

    def is_over() -> bool:
        ranks[:] = running(ranks)
        return not ranks

    wait(is_over, _LONGEST_SET_SECONDS)
    end(ranks)


def _begin(case: Case, folder: Path) -> list[int]:
    """The job's processes."""
    (folder / FLIGHT_FOLDER).mkdir(parents=True)
    (folder / "truth.json").write_text(json.dumps(asdict(case)))
    run = RunManifest(case.name, "here", case.tp * case.dp, {"tp": case.tp, "dp": case.dp}, 1, {}, {}, [])
    (folder / RUN_FILE).write_bytes(encode_document(run))
    return [forked(partial(_rank, case, rank, folder)) for rank in range(case.tp * case.dp)]


def _rank(case: Case, rank: int, folder: Path) -> None:
    with (folder / f"rank{rank}.log").open("wb", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        _train(case, rank, folder / FLIGHT_FOLDER, str(folder / "store"))
    except RuntimeError:  # a peer is gone; the dump is still to come
        traceback.print_exc()
        time.sleep(FOR_EVER)


def _train(case: Case, rank: int, folder: Path, store: str) -> None:
    os.environ |= {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_ENABLE_TIMING": "1"}  # which calls the GPU has begun
    torch.set_num_threads(1)
    world = case.tp * case.dp
    device = device_of(case.backend, rank)
    dist.init_process_group(
        case.backend, init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=FOR_EVER)
    )
    mesh = torch.arange(world).view(case.dp, case.tp).tolist()
    tensor_groups = [dist.new_group(row, group_desc="tensor_parallel") for row in mesh]
    data_groups = [dist.new_group(list(column), group_desc="data_parallel") for column in zip(*mesh, strict=True)]
    tensor, data = tensor_groups[rank // case.tp], data_groups[rank % case.tp]
    for communicate in _calls(tensor, data, device):  # NCCL connects with the first call of each kind
        communicate()
    barrier(device)
    threading.Thread(target=_dump_later, args=(folder / f"dump_{rank}", case.backend), daemon=True).start()
    fault = _AT.get(case.fault)
    for step in range(_STEPS):
        is_at = rank in case.guilty and step == case.step
        for place, communicate in enumerate(_calls(tensor, data, device)):
            if is_at and place == case.step % 4 and fault is not None and fault(tensor, device):
                continue
            communicate()
        if device.type == "cuda" and not case.is_ahead:
            torch.cuda.synchronize()
        if is_at and case.fault == "leaves":
            break
    if case.fault == "healthy":
        barrier(device)
    elif case.fault == "leaves":
        dist.all_reduce(torch.ones(3, device=device))  # the mean of the last losses, say
    time.sleep(FOR_EVER)


def _calls(tensor: dist.ProcessGroup, data: dist.ProcessGroup, device: torch.device) -> list[Callable[[], object]]:
    """What a step communicates, in its order."""
    small, large = torch.ones(64, device=device), torch.ones(4096, device=device)
    return [
        lambda: dist.all_reduce(small, group=tensor),
        lambda: dist.all_reduce(large, group=tensor),
        lambda: dist.all_reduce(large, group=data),
        lambda: dist.broadcast(small, src=dist.get_global_rank(data, 0), group=data),
        lambda: dist.all_reduce(small),
    ]


def _dump_later(path: Path, backend: str) -> None:
    time.sleep(_DUMP_SECONDS[backend])
    partial = path.with_suffix(".part")
    dump = recorder._dump_nccl_trace if backend == "nccl" else recorder._dump_fr_trace  # type: ignore[attr-defined]
    partial.write_bytes(dump())  # with stacks, and all that is recorded
    partial.rename(path)
    time.sleep(1.0)  # the others' dumps are about their own wait, not about a peer that is gone
    os._exit(0)


def _sleep(*_: object) -> bool:
    time.sleep(FOR_EVER)
    return True


def _die(*_: object) -> bool:
    os._exit(1)


def _hold_lock(*_: object) -> bool:
    """Hold the interpreter's lock: no other thread runs, so there is no dump."""
    ctypes.PyDLL(None).sleep(int(max(_DUMP_SECONDS.values()) + 4))
    os._exit(1)


def _call_other(tensor: dist.ProcessGroup, device: torch.device) -> bool:
    barrier(device, tensor)
    return False


def _occupy(*_: object) -> bool:
    """Before the call."""
    occupy_gpu()
    return False


_AT: dict[str, Callable[[dist.ProcessGroup, torch.device], bool]] = {
    "sleeps": _sleep,
    "two_sleep": _sleep,
    "dies": _die,
    "holds_lock": _hold_lock,
    "calls_other": _call_other,
    "kernel": _occupy,
}
_FAULTS: dict[str, str | None] = {
    "sleeps": "host",
    "two_sleep": "host",
    "dies": "unknown",
    "holds_lock": "unknown",
    "calls_other": "desync",
    "leaves": "desync",
    "kernel": "device",
    "healthy": None,
}


if __name__ == "__main__":
    raise SystemExit(main())
