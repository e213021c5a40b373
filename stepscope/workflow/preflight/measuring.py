"""Measurements of GPUs, links and collectives: their order and sizes.

Memory and products run on all GPUs at once, as a job's do: power and cooling are shared. Copies from and to the host
run on one after the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.core.documents.machine_checks import DTYPES, CheckResult, Outcome
from stepscope.core.hardware.gpu_catalogue import GpuModel
from stepscope.workflow.preflight import performance
from stepscope.workflow.preflight import workers as processes
from stepscope.workflow.preflight.device import Pace
from stepscope.workflow.preflight.gpus import MeasuredGpu
from stepscope.workflow.preflight.performance import Expectation, judge_failure, judge_products, judge_rate

_BYTES, _OPERATIONS = "bytes/s", "FLOP/s"
_DESCRIBE = {"do": "describe"}


class Measuring:
    """Preflight measurements of each GPU in its worker."""

    def __init__(
        self,
        gpus: Sequence[MeasuredGpu],
        workers: Mapping[int, processes.Worker],
        sizes: MeasurementSizes,
        *,
        seconds: float,
        is_cuda: bool,
    ) -> None:
        self.results: list[CheckResult] = []
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self._workers = workers
        self._sizes = sizes
        self._seconds = seconds
        self._is_cuda = is_cuda
        self._failed_in: dict[int, str] = {}

    def start(self, seconds: float, *, beside: processes.Worker | None = None) -> None:
        """Wait until every worker has its device; only failures become results.

        Args:
            beside: a further worker that must be ready.
        """
        requests: dict[processes.Worker, Mapping[str, Any]] = {
            worker: {**_DESCRIBE, "beside": self._gpus[index].pci_bus_id} for index, worker in self._workers.items()
        }
        replies = processes.ask_workers(requests if beside is None else {**requests, beside: _DESCRIBE}, seconds)
        for index, worker in self._workers.items():
            reply = replies[worker]
            if isinstance(reply, dict) and not reply["devices"]:
                reply = worker.fail(
                    processes.FailureKind.ERROR, "torch sees no GPU in a process that may see this one alone"
                )
            if isinstance(reply, processes.WorkerFailure):
                self._add(judge_failure("start", (index,), reply))

    def healthy(self) -> list[MeasuredGpu]:
        """GPUs whose worker still runs."""
        return [gpu for gpu in self._gpus.values() if gpu.index not in self._failed_in]

    def memory(self) -> None:
        """Measure copies within the memory."""
        request = {"do": "copy", "num_bytes": self._sizes.copy_bytes, "pace": asdict(self._sizes.pace)}
        for index, reply in self._ask("memory_bandwidth", request).items():
            model = self._model(index)
            expected = performance.expect_memory(model) if model else None
            self._rate("memory_bandwidth", index, reply, 2 * self._sizes.copy_bytes, _BYTES, expected)

    def products(self) -> None:
        """Measure matrix products of each dtype."""
        size = self._sizes.product_size
        for dtype in DTYPES:
            request = {"do": "multiply", "dtype": dtype, "size": size, "pace": asdict(self._sizes.pace)}
            for index, reply in self._ask(f"matmul_{dtype}", request).items():
                model = self._model(index)
                expected = performance.expect_product(model, self._gpus[index].name, dtype) if model else None
                self._rate(f"matmul_{dtype}", index, reply, 2 * size**3, _OPERATIONS, expected)

    def right_results(self) -> None:
        """Check repeats of one product, and an exact one."""
        sizes = self._sizes
        for dtype in DTYPES:
            check = f"results_{dtype}"
            request = {
                "do": "check_products",
                "dtype": dtype,
                "size": sizes.checked_size,
                "num_repeats": sizes.num_repeats,
            }
            for index, reply in self._ask(check, request).items():
                self._add(judge_products(check, (index,), reply))

    def host_copies(self) -> None:
        """Measure copies between host and GPU, one GPU after the other: some share a switch."""
        for check, do in (("host_to_device", "upload"), ("device_to_host", "download")):
            request = {"do": do, "num_bytes": self._sizes.host_bytes, "pace": asdict(self._sizes.link_pace)}
            for index, gpu in self._gpus.items():
                for reply in self._ask(check, request, only=index).values():
                    expected = performance.expect_host_copy(gpu.name, *(gpu.pcie or (None, None)))
                    self._rate(check, index, reply, self._sizes.host_bytes, _BYTES, expected if self._is_cuda else None)

    def _model(self, index: int) -> GpuModel | None:
        return self._gpus[index].model if self._is_cuda else None

    def _ask(self, check: str, request: Mapping[str, Any], *, only: int | None = None) -> dict[int, processes.Reply]:
        """Ask all GPUs, or one; a check of a GPU that failed before is skipped."""
        asked = {}
        for index in self._gpus if only is None else (only,):
            if index in self._failed_in:
                why = f"not made after {self._failed_in[index]} failed"
                self.results.append(CheckResult(check, (index,), Outcome.SKIPPED, why))
            else:
                asked[self._workers[index]] = index
        replies = processes.ask_workers(dict.fromkeys(asked, request), self._seconds)
        return {asked[worker]: reply for worker, reply in replies.items()}

    def _rate(
        self, check: str, index: int, reply: processes.Reply, amount: float, unit: str, expected: Expectation | None
    ) -> None:
        self._add(
            judge_rate(
                check, (index,), reply, amount=amount, unit=unit, expectation=expected, judges_spread=self._is_cuda
            )
        )

    def _add(self, result: CheckResult) -> None:
        (index,) = result.gpus
        self.results.append(result)
        if self._workers[index].failure is not None:
            self._failed_in.setdefault(index, result.check)


MAX_RESTARTS = 3
"""Of the process that copies between GPUs, after a pair has ended it."""


def measure_peers(
    gpus: Sequence[MeasuredGpu],
    worker: processes.Worker | None,
    restart: Callable[[], processes.Worker],
    sizes: MeasurementSizes,
    seconds: float,
) -> list[CheckResult]:
    """Measure a preflight's copies between each two GPUs, one pair after the other.

    Args:
        gpus: at least two.
        worker: sees them in this order; None where there is none yet. It is closed here.
        seconds: deadline of a pair.
    """
    results = []
    worker = worker or restart()
    num_left = MAX_RESTARTS
    places = list(enumerate(gpus))
    try:
        for from_place, source in places:
            for to_place, target in places:
                if from_place == to_place or not (sizes.both_ways or from_place < to_place):
                    continue
                if worker.failure is not None and num_left:
                    num_left -= 1
                    worker.close()
                    worker = restart()
                pair = (source.index, target.index)
                if worker.failure is not None:
                    why = "not made: copies between other GPUs hang or fail again and again"
                    results.append(CheckResult("peer_copy", pair, Outcome.SKIPPED, why))
                    continue
                request = {
                    "do": "copy_to_peer",
                    "source": from_place,
                    "target": to_place,
                    "num_bytes": sizes.peer_bytes,
                    "pace": asdict(sizes.link_pace),
                }
                reply = processes.ask_worker(worker, request, seconds)
                results.append(_judge_pair(source, target, reply, sizes.peer_bytes))
    finally:
        worker.close()
    return results


def measure_all_reduce(
    gpus: Sequence[MeasuredGpu],
    workers: Mapping[int, processes.Worker],
    sizes: MeasurementSizes,
    seconds: float,
    *,
    is_cuda: bool,
) -> CheckResult:
    """Measure a preflight's all-reduce over all GPUs, in their workers.

    Args:
        gpus: at least two.
        seconds: deadline of it, and of joining before it.
        is_cuda: whether expectations of GPUs apply.
    """
    members = [workers[gpu.index] for gpu in gpus]
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        path = str(Path(folder) / "rendezvous")
        joins: dict[processes.Worker, Mapping[str, Any]] = {
            worker: {"do": "join", "rank": rank, "world_size": len(gpus), "path": path, "seconds": seconds}
            for rank, worker in enumerate(members)
        }
        replies = processes.ask_workers(joins, seconds)
        if all(isinstance(reply, dict) for reply in replies.values()):
            request = {
                "do": "all_reduce",
                "num_bytes": sizes.all_reduce_bytes,
                "num_warm": sizes.num_warm,
                "num_runs": sizes.num_runs,
            }
            replies = processes.ask_workers(dict.fromkeys(members, request), seconds)
    expected = _expect_all_reduce(gpus) if is_cuda else None
    return _judge_all_reduce(
        tuple(gpu.index for gpu in gpus), [replies[worker] for worker in members], sizes.all_reduce_bytes, expected
    )


def _judge_pair(source: MeasuredGpu, target: MeasuredGpu, reply: processes.Reply, num_bytes: int) -> CheckResult:
    expected = None
    if source.model is not None and source.nvlinks is not None:
        num_links = sum(source.nvlinks.values())
        expected = performance.expect_peer_copy(source.model, source.name, num_links, source.links_to(target))
    pair = (source.index, target.index)
    return judge_rate(
        "peer_copy", pair, reply, amount=num_bytes, unit=_BYTES, expectation=expected, judges_spread=False
    )


def _judge_all_reduce(
    gpus: tuple[int, ...], replies: Sequence[processes.Reply], num_bytes: int, expected: Expectation | None
) -> CheckResult:
    failed = [
        (index, reply) for index, reply in zip(gpus, replies, strict=True) if isinstance(reply, processes.WorkerFailure)
    ]
    if failed:
        # a worker that only hangs waits for the others: one that ended gives the reason
        _, first = next(
            ((index, one) for index, one in failed if one.kind is not processes.FailureKind.HUNG), failed[0]
        )
        who = ", ".join(str(index) for index, _ in failed)
        return judge_failure("all_reduce", gpus, processes.WorkerFailure(first.kind, f"GPU {who}: {first.detail}"))
    unsupported = next((reply for reply in replies if isinstance(reply, processes.Unsupported)), None)
    if unsupported is not None:
        return judge_failure("all_reduce", gpus, unsupported)
    answers = [reply for reply in replies if isinstance(reply, dict)]
    last = min(answers, key=lambda answer: float(answer["seconds"]))  # the others waited for it
    return judge_rate(
        "all_reduce",
        gpus,
        {**last, "num_wrong": sum(answer["num_wrong"] for answer in answers)},
        amount=performance.bus_bytes(num_bytes, len(gpus)),
        unit=_BYTES,
        expectation=expected,
        judges_spread=False,
        results="sums",
    )


def _expect_all_reduce(gpus: Sequence[MeasuredGpu]) -> Expectation | None:
    model = gpus[0].model
    if model is None or any(gpu.nvlinks is None for gpu in gpus):
        return None
    is_meshed = all(a.links_to(b) for a in gpus for b in gpus if a is not b)
    return performance.expect_all_reduce(model, gpus[0].name, len(gpus), is_meshed=is_meshed)


_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class MeasurementSizes:
    """Sizes of the measurements of a preflight.

    Attributes:
        copy_bytes: of a copy within the memory; far more than the GPU's caches.
        host_bytes, peer_bytes, all_reduce_bytes: of the other transfers.
        product_size: rows and columns of the matrices that are timed.
        checked_size, num_repeats: of those that are compared bit by bit.
        pace: of memory and products: long enough for clocks and power to settle.
        link_pace: of transfers, which do not heat the GPU.
        both_ways: whether each pair of GPUs is measured in both directions.
        num_warm, num_runs: all-reduces.
    """

    copy_bytes: int
    host_bytes: int
    peer_bytes: int
    all_reduce_bytes: int
    product_size: int
    checked_size: int
    num_repeats: int
    pace: Pace
    link_pace: Pace
    both_ways: bool
    num_warm: int
    num_runs: int


FULL = MeasurementSizes(
    copy_bytes=2048 * _MIB,
    host_bytes=512 * _MIB,
    peer_bytes=512 * _MIB,
    all_reduce_bytes=1024 * _MIB,
    product_size=8192,
    checked_size=8192,
    num_repeats=100,
    pace=Pace(1.0, 3.0, 20, 2000),
    link_pace=Pace(0.1, 0.4, 8, 200),
    both_ways=True,
    num_warm=5,
    num_runs=20,
)
QUICK = MeasurementSizes(
    copy_bytes=1024 * _MIB,
    host_bytes=256 * _MIB,
    peer_bytes=256 * _MIB,
    all_reduce_bytes=256 * _MIB,
    product_size=8192,
    checked_size=4096,
    num_repeats=20,
    pace=Pace(0.2, 0.4, 8, 500),
    link_pace=Pace(0.02, 0.06, 4, 50),
    both_ways=False,
    num_warm=3,
    num_runs=10,
)
CPU = MeasurementSizes(
    copy_bytes=64 * _MIB,
    host_bytes=_MIB,
    peer_bytes=_MIB,
    all_reduce_bytes=4 * _MIB,
    product_size=256,
    checked_size=256,
    num_repeats=5,
    pace=Pace(0.05, 0.15, 5, 200),
    link_pace=Pace(0.05, 0.15, 5, 200),
    both_ways=False,
    num_warm=2,
    num_runs=10,
)
"""Small: on the CPU the code is tried, not the machine."""


def sizes_for(device_type: str, *, quick: bool) -> MeasurementSizes:
    """The sizes of a preflight's measurements."""
    return CPU if device_type == "cpu" else QUICK if quick else FULL
