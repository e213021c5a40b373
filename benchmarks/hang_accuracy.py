"""How right is `stepscope hang`? Jobs of 4 to 16 gloo ranks, each hung on purpose, and what their recorders say of it.

    python -m benchmarks.hang_accuracy [--sets 36] [--seed 0] [-o DIR]

Each set is real training communication: a world group, tensor-parallel and data-parallel groups, some steps of
all-reduces, then one fault. After a while each rank writes its flight recorder into a run directory, as a watchdog
would. The truth lies beside it: a set is right when kind and ranks are exactly those. Needs torch with gloo.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as recorder

from stepscope.core.run_layout import FLIGHT_FOLDER, RUN_FILE, RunManifest
from stepscope.store.documents import encode_document
from stepscope.workflow.hang import read_hang

RIGHT_GOAL = 0.95
LONGEST_SECONDS = 1.0
_STEPS = 6
_DUMP_SECONDS = 4.0
_FOR_EVER = 3600.0
_LAYOUTS = ((2, 2), (4, 2), (2, 4), (4, 4), (8, 2), (1, 8))
"""Tensor-parallel times data-parallel ranks."""


@dataclass(frozen=True)
class Case:
    """One job and its truth; `kind` is None for a job that goes well."""

    fault: str
    tp: int
    dp: int
    guilty: tuple[int, ...]
    step: int
    kind: str | None

    @property
    def name(self) -> str:
        """Also its folder's."""
        return f"{self.fault}-{self.tp}x{self.dp}-{'_'.join(map(str, self.guilty)) or 'none'}-step{self.step}"


def cases(number: int, seed: int) -> list[Case]:
    """So many jobs, faults in turn, the rest drawn."""
    chance = random.Random(seed)
    made: dict[str, Case] = {}
    index = 0
    while len(made) < number:
        fault, kind = list(_FAULTS.items())[index % len(_FAULTS)]
        tp, dp = chance.choice([layout for layout in _LAYOUTS if fault != "calls_other" or layout[0] > 1])
        guilty = chance.sample(range(tp * dp), {"two_sleep": 2, "healthy": 0}.get(fault, 1))
        case = Case(fault, tp, dp, tuple(sorted(guilty)), chance.randrange(1, _STEPS - 1), kind)
        made.setdefault(case.name, case)
        index += 1
    return list(made.values())


def main() -> int:
    """Print the table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=36)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="keep the dumps here")
    options = parser.parse_args()
    output = options.output or Path(tempfile.mkdtemp())
    right = {fault: [0, 0] for fault in _FAULTS}
    slowest = 0.0
    for case in cases(options.sets, options.seed):
        folder = output / case.name
        record(case, folder)
        begin = time.process_time()
        verdict = read_hang([str(folder)]).verdict
        slowest = max(slowest, time.process_time() - begin)
        is_right = verdict.kind == case.kind and tuple(verdict.ranks) == case.guilty
        right[case.fault][0] += is_right
        right[case.fault][1] += 1
        if not is_right:
            print(f"{case.name}: {verdict.cause} {verdict.kind} {verdict.ranks}: {verdict.summary}", file=sys.stderr)
    for fault, (so, of) in right.items():
        print(f"{fault:12} {_FAULTS[fault] or 'no hang':9} {so:3} of {of}")
    so, of = map(sum, zip(*right.values(), strict=True))
    print(f"all          {'':9} {so:3} of {of}; slowest answer {slowest:.2f} s")
    return 0 if so >= RIGHT_GOAL * of and slowest <= LONGEST_SECONDS else 1


def record(case: Case, folder: Path) -> None:
    """Run the job in processes of its own, and leave dumps and truth in `folder`."""
    flight = folder / FLIGHT_FOLDER
    flight.mkdir(parents=True)
    (folder / "truth.json").write_text(json.dumps(asdict(case)))
    run = RunManifest(case.name, "here", case.tp * case.dp, {"tp": case.tp, "dp": case.dp}, 1, {}, {}, [])
    (folder / RUN_FILE).write_bytes(encode_document(run))
    store = str(folder / "store")
    ranks = []
    sys.stdout.flush()
    for rank in range(case.tp * case.dp):
        if (process := os.fork()) == 0:
            try:
                _train(case, rank, flight, store)
            except RuntimeError:  # a peer is gone; the dump is still to come
                time.sleep(_FOR_EVER)
            finally:
                os._exit(1)
        ranks.append(process)
    for process in ranks:
        os.waitpid(process, 0)


def _train(case: Case, rank: int, folder: Path, store: str) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    torch.set_num_threads(1)
    world = case.tp * case.dp
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=_FOR_EVER)
    )
    mesh = torch.arange(world).view(case.dp, case.tp).tolist()
    tensor_groups = [dist.new_group(row, group_desc="tensor_parallel") for row in mesh]
    data_groups = [dist.new_group(list(column), group_desc="data_parallel") for column in zip(*mesh, strict=True)]
    dist.barrier()
    threading.Thread(target=_dump_later, args=(folder / f"dump_{rank}",), daemon=True).start()
    tensor, data = tensor_groups[rank // case.tp], data_groups[rank % case.tp]
    fault = _AT.get(case.fault)
    for step in range(_STEPS):
        is_at = rank in case.guilty and step == case.step
        for place, communicate in enumerate(_calls(tensor, data)):
            if is_at and place == case.step % 4 and fault is not None and fault(communicate, tensor, data):
                continue
            communicate()
        if is_at and case.fault == "leaves":
            break
    if case.fault == "healthy":
        dist.barrier()
    elif case.fault == "leaves":
        dist.all_reduce(torch.ones(3))  # the mean of the last losses, say
    time.sleep(_FOR_EVER)


def _calls(tensor: dist.ProcessGroup, data: dist.ProcessGroup) -> list[Callable[[], object]]:
    """What a step communicates, in its order."""
    small, large = torch.ones(64), torch.ones(4096)
    return [
        lambda: dist.all_reduce(small, group=tensor),
        lambda: dist.all_reduce(large, group=tensor),
        lambda: dist.all_reduce(large, group=data),
        lambda: dist.broadcast(small, src=dist.get_global_rank(data, 0), group=data),
        lambda: dist.all_reduce(small),
    ]


def _dump_later(path: Path) -> None:
    time.sleep(_DUMP_SECONDS)
    partial = path.with_suffix(".part")
    partial.write_bytes(recorder._dump_fr_trace())  # type: ignore[attr-defined]  # torch's stubs lack it
    partial.rename(path)
    time.sleep(1.0)  # the others' dumps are about their own wait, not about a peer that is gone
    os._exit(0)


def _sleep(*_: object) -> bool:
    time.sleep(_FOR_EVER)
    return True


def _die(*_: object) -> bool:
    os._exit(1)


def _hold_lock(*_: object) -> bool:
    """The interpreter's lock is held: no other thread runs, so there will be no dump."""
    ctypes.PyDLL(None).sleep(int(_DUMP_SECONDS + 4))
    os._exit(1)


def _call_other(_: object, tensor: dist.ProcessGroup, __: dist.ProcessGroup) -> bool:
    dist.barrier(group=tensor)
    return False


_AT: dict[str, Callable[[Callable[[], object], dist.ProcessGroup, dist.ProcessGroup], bool]] = {
    "sleeps": _sleep,
    "two_sleep": _sleep,
    "dies": _die,
    "holds_lock": _hold_lock,
    "calls_other": _call_other,
}
_FAULTS: dict[str, str | None] = {
    "sleeps": "host",
    "two_sleep": "host",
    "dies": "unknown",
    "holds_lock": "unknown",
    "calls_other": "desync",
    "leaves": "desync",
    "healthy": None,
}


if __name__ == "__main__":
    raise SystemExit(main())
