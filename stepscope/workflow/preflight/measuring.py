"""What is each GPU asked, in which order, and what of it at the same time as the others?

Memory and products run on all GPUs at once, as a job's do: power and cooling are shared. Copies from and to the host
run on one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stepscope.core.hardware import GpuModel
from stepscope.core.preflight import DTYPES, CheckResult, Outcome
from stepscope.workflow.preflight import expectations
from stepscope.workflow.preflight.expectations import Expectation
from stepscope.workflow.preflight.gpus import MeasuredGpu
from stepscope.workflow.preflight.judging import judge_failure, judge_products, judge_rate, with_wrong
from stepscope.workflow.preflight.sizes import Sizes
from stepscope.workflow.preflight.workers import Failure, FailureKind, Reply, Worker, ask_all

_BYTES, _OPERATIONS = "bytes/s", "FLOP/s"
_DESCRIBE = {"do": "describe"}


class Measuring:
    """Asks, judges, and keeps what came of it.

    Attributes:
        results: so far.
    """

    def __init__(
        self, gpus: Sequence[MeasuredGpu], workers: Mapping[int, Worker], sizes: Sizes, *, seconds: float, is_cuda: bool
    ) -> None:
        """
        Args:
            gpus: to measure.
            workers: a process for each, by index.
            sizes: how much.
            seconds: that a check may take on one GPU.
            is_cuda: whether expectations of GPUs hold.
        """
        self.results: list[CheckResult] = []
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self._workers = workers
        self._sizes = sizes
        self._seconds = seconds
        self._is_cuda = is_cuda
        self._failed_in: dict[int, str] = {}

    def start(self, seconds: float, *, beside: Worker | None = None) -> None:
        """Wait until every process has its device; what fails here is a result, what succeeds is none.

        Args:
            seconds: that it may take.
            beside: a further process that shall be ready afterwards.
        """
        requests: dict[Worker, Mapping[str, Any]] = {
            worker: {**_DESCRIBE, "beside": self._gpus[index].pci_bus_id} for index, worker in self._workers.items()
        }
        replies = ask_all(requests if beside is None else {**requests, beside: _DESCRIBE}, seconds)
        for index, worker in self._workers.items():
            reply = replies[worker]
            if isinstance(reply, dict) and not reply["devices"]:
                reply = worker.fail(FailureKind.ERROR, "torch sees no GPU in a process that may see this one alone")
            if isinstance(reply, Failure):
                self._add(judge_failure("start", (index,), reply))

    def healthy(self) -> list[MeasuredGpu]:
        """Those that have failed nothing that ended their process."""
        return [gpu for gpu in self._gpus.values() if gpu.index not in self._failed_in]

    def memory(self) -> None:
        """Copies within the memory."""
        request = {"do": "copy", "bytes": self._sizes.copy_bytes, "pace": asdict(self._sizes.pace)}
        for index, reply in self._ask("memory_bandwidth", request).items():
            model = self._model(index)
            expected = expectations.expect_memory(model) if model else None
            self._rate("memory_bandwidth", index, reply, 2 * self._sizes.copy_bytes, _BYTES, expected)

    def products(self) -> None:
        """Matrix products of each type."""
        size = self._sizes.product_size
        for dtype in DTYPES:
            request = {"do": "multiply", "dtype": dtype, "size": size, "pace": asdict(self._sizes.pace)}
            for index, reply in self._ask(f"matmul_{dtype}", request).items():
                model = self._model(index)
                expected = expectations.expect_product(model, self._gpus[index].name, dtype) if model else None
                self._rate(f"matmul_{dtype}", index, reply, 2 * size**3, _OPERATIONS, expected)

    def right_results(self) -> None:
        """The same product again and again, and an exact one."""
        sizes = self._sizes
        for dtype in DTYPES:
            check = f"results_{dtype}"
            request = {"do": "check_products", "dtype": dtype, "size": sizes.checked_size, "repeats": sizes.num_repeats}
            for index, reply in self._ask(check, request).items():
                self._add(judge_products(check, (index,), reply))

    def host_copies(self) -> None:
        """Between host and GPU, one GPU after the other: some share a switch."""
        for check, do in (("host_to_device", "upload"), ("device_to_host", "download")):
            request = {"do": do, "bytes": self._sizes.host_bytes, "pace": asdict(self._sizes.link_pace)}
            for index, gpu in self._gpus.items():
                for reply in self._ask(check, request, only=index).values():
                    expected = expectations.expect_host_copy(gpu.name, *(gpu.pcie or (None, None)))
                    self._rate(check, index, reply, self._sizes.host_bytes, _BYTES, expected if self._is_cuda else None)

    def _model(self, index: int) -> GpuModel | None:
        return self._gpus[index].model if self._is_cuda else None

    def _ask(self, check: str, request: Mapping[str, Any], *, only: int | None = None) -> dict[int, Reply]:
        """Ask all GPUs, or one; for those that failed before, the check is skipped."""
        asked = {}
        for index in self._gpus if only is None else (only,):
            if index in self._failed_in:
                why = f"not made after {self._failed_in[index]} failed"
                self.results.append(CheckResult(check, (index,), Outcome.SKIPPED, why))
            else:
                asked[self._workers[index]] = index
        replies = ask_all(dict.fromkeys(asked, request), self._seconds)
        return {asked[worker]: reply for worker, reply in replies.items()}

    def _rate(
        self, check: str, index: int, reply: Reply, amount: float, unit: str, expected: Expectation | None
    ) -> None:
        result = judge_rate(
            check,
            (index,),
            reply,
            amount=amount,
            unit=unit,
            expectation=expected,
            judges_spread=self._is_cuda,
        )
        self._add(with_wrong(result, [reply], "bytes"))

    def _add(self, result: CheckResult) -> None:
        """A result of one GPU."""
        (index,) = result.gpus
        self.results.append(result)
        if self._workers[index].failure is not None:
            self._failed_in.setdefault(index, result.check)
