"""Checks of measured rates against the data sheet and against the node's other GPUs. Pure.

No GPU reaches its data sheet. Shares measured elsewhere, by torch's own products and copies:

- 16-bit products: H100 SXM 80 %, GH200 83 %, A100 SXM 86 %, MI325X 60 %, MI300X 51 %; float8: H100 71 %, GH200 78 %:
  the best shapes found (github.com/stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS").
  8192 x 8192 on H200: 78 to 81 %.
- memory: H200 4.3 of 4.8 TB/s (90 %) with torch's copy; H100 77 % with p2pBandwidthLatencyTest (NVIDIA/nccl#1264).
- NVLink: 380 of 450 GB/s one way on H100 (NVIDIA/nccl#1264), 20 of 25 GB/s a link before (`core.links`).
- PCIe: 52.8 of 63 GB/s on H100 (NVIDIA/nvbandwidth#24), 26.3 of 31.5 GB/s on A6000 (NVIDIA/nvbandwidth#50).
- all-reduce in one host of 8 H100: 275 (one that asked why so little) to 370 GB/s (NVIDIA/nccl-tests#309).

The expectations lie under the best of these; a warning starts at 85 % of the expectation, a failure at 70 %. Healthy
GPUs of one node differ by 5 % and more (ml-engineering, as above).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from stepscope.core.documents.machine_checks import CheckResult, Outcome
from stepscope.core.hardware.gpu_catalogue import (
    NVLINK_SHARE,
    PCIE_BYTES_PER_SECOND,
    GpuModel,
    bus_factor,
    pcie_link,
    scale_up_link,
)
from stepscope.core.text.numbers import counted, form
from stepscope.workflow.preflight.device import ProductErrors, Timing
from stepscope.workflow.preflight.workers import FailureKind, Reply, Unsupported, WorkerFailure

MAX_SPREAD = 0.1
"""Of runs on a GPU: more means that clocks change, or that the GPU is shared. Healthy ones show some percent."""
_TAKE_OUT = "take it out of service"

_NEXT = {
    FailureKind.HUNG: "the GPU or its driver hangs: drain the node, look for XIDs, reset the GPU or reboot",
    FailureKind.DIED: "the GPU or its driver ended the process: look for XIDs, reset the GPU",
    FailureKind.ERROR: "look for XIDs and at who else is on the GPU; reset it",
}


def judge_rate(
    check: str,
    gpus: tuple[int, ...],
    reply: Reply,
    *,
    amount: float,
    unit: str,
    expectation: Expectation | None,
    judges_spread: bool = True,
    results: str = "bytes",
) -> CheckResult:
    """Judge a preflight's measured rate, and fail it where results came out wrong.

    Args:
        reply: the fields of a Timing, or why there are none.
        amount: bytes or operations of a run.
        expectation: None where nothing is known of such a GPU: only its neighbours can judge it.
        judges_spread: warn where the runs differ.
        results: what the wrong ones are called.
    """
    if not isinstance(reply, dict):
        return judge_failure(check, gpus, reply)
    timing = Timing(**reply)
    if not timing.seconds > 0:
        what = f"a run took {timing.seconds:g} s by the device's clock"
        return judge_failure(check, gpus, WorkerFailure(FailureKind.ERROR, what))
    value = amount / timing.seconds
    result = CheckResult(
        check, gpus, Outcome.PASS, value=value, unit=unit, spread=timing.spread, num_runs=timing.num_runs
    )
    if expectation is not None:
        result = _judge_value(result, value, expectation)
    if judges_spread and result.outcome is Outcome.PASS and timing.spread > MAX_SPREAD:
        detail = f"half of the runs differ by {timing.spread:.0%} and more: are clocks throttled, is the GPU shared?"
        result = replace(result, outcome=Outcome.WARN, detail=detail)
    if timing.num_wrong:
        detail = f"{timing.num_wrong} {results} are wrong: memory or a link corrupts data silently; {_TAKE_OUT}"
        result = replace(result, outcome=Outcome.FAIL, detail=detail)
    return result


def _judge_value(result: CheckResult, value: float, expectation: Expectation) -> CheckResult:
    result = replace(
        result,
        expected=expectation.value,
        warn_below=expectation.warn_below,
        fail_below=expectation.fail_below,
        source=expectation.source,
    )
    if value >= expectation.warn_below:
        return result
    outcome = Outcome.FAIL if value < expectation.fail_below else Outcome.WARN
    return replace(result, outcome=outcome, detail=f"{value / expectation.value:.0%} of what such a GPU gives")


def judge_failure(check: str, gpus: tuple[int, ...], reply: WorkerFailure | Unsupported) -> CheckResult:
    """The result of a failed preflight measurement: skipped where the device cannot do it, else failed."""
    if isinstance(reply, Unsupported):
        return CheckResult(check, gpus, Outcome.SKIPPED, reply.detail)
    return CheckResult(check, gpus, Outcome.FAIL, why_worker_failed(reply))


def why_worker_failed(failure: WorkerFailure) -> str:
    """How a preflight's worker process failed, and what to do."""
    return f"{failure.detail}; {_NEXT[failure.kind]}"


def judge_products(check: str, gpus: tuple[int, ...], reply: Reply) -> CheckResult:
    """Judge a preflight's repeated and exact products; the value is the number of wrong ones."""
    if not isinstance(reply, dict):
        return judge_failure(check, gpus, reply)
    products = ProductErrors(**reply)
    differing, wrong = products.num_differing, products.num_wrong
    faults = []
    if differing:
        repeats = counted(products.num_repeats, "repeat")
        faults.append(f"{differing} of {repeats} of one product {form(differing, 'has', 'have')} other bits")
    if wrong:
        faults.append(f"{counted(wrong, 'element of an exact product is', 'elements of an exact product are')} wrong")
    if faults:
        detail = f"{' and '.join(faults)}: this GPU corrupts data silently; {_TAKE_OUT}"
        return CheckResult(check, gpus, Outcome.FAIL, detail, value=float(differing + wrong), expected=0.0)
    return CheckResult(check, gpus, Outcome.PASS, value=0.0, expected=0.0, num_runs=products.num_repeats + 1)


def with_neighbours(results: Sequence[CheckResult], kinds: Mapping[int, str]) -> list[CheckResult]:
    """Preflight's results, with a warning where a GPU is slower than the others of its model."""
    slow: dict[int, str] = {}
    groups: dict[tuple[str, str], dict[int, int]] = {}
    for place, result in enumerate(results):
        if result.value is not None and result.unit.endswith("/s") and len(result.gpus) == 1:
            groups.setdefault((result.check, kinds[result.gpus[0]]), {})[result.gpus[0]] = place
    for members in groups.values():
        values = {index: results[place].value or 0.0 for index, place in members.items()}
        for index, outlier in low_outliers(values).items():
            lack = 1 - outlier.value / outlier.usual
            slow[members[index]] = f"{lack:.0%} less than the other GPUs of this node, which is beyond their spread"
    return [
        replace(result, outcome=Outcome.WARN, detail=slow[place])
        if place in slow and result.outcome is Outcome.PASS
        else result
        for place, result in enumerate(results)
    ]


_SCALE = 1.4826
"""The median absolute deviation of normally distributed values, times this, is their standard deviation."""
MAX_DEVIATIONS = 5.0
MIN_EFFECT = 0.08
"""Healthy GPUs of one node differ by 5 % and more (github.com/stas00/ml-engineering, compute/accelerator)."""
MIN_GPUS_FOR_SPREAD = 4
_PAIR_EFFECT = 0.15
"""Of two or three GPUs none is typical: only a large difference counts."""


@dataclass(frozen=True, slots=True)
class _Outlier:
    """A GPU that is slower than the others.

    Attributes:
        value: its rate.
        usual: the median of all; of two or three the best.
        limit: the least rate that is not an outlier.
    """

    value: float
    usual: float
    limit: float


def low_outliers(values: Mapping[int, float]) -> dict[int, _Outlier]:
    """GPUs that a preflight finds slower than the others, by index: `values` are rates of GPUs of one kind."""
    if len(values) < 2:
        return {}
    if len(values) < MIN_GPUS_FOR_SPREAD:
        usual = max(values.values())
        limit = usual * (1 - _PAIR_EFFECT)
    else:
        usual = median(values.values())
        deviation = _SCALE * median(abs(value - usual) for value in values.values())
        limit = usual - max(MAX_DEVIATIONS * deviation, MIN_EFFECT * usual)
    return {index: _Outlier(value, usual, limit) for index, value in values.items() if value < limit}


WARN_SHARE = 0.85
FAIL_SHARE = 0.7

_MEMORY_SHARE = 0.82
_MEMORY_SHARE_GDDR = 0.75
"""GDDR cards keep their ECC bits in the same memory."""
_HBM_BYTES_PER_SECOND = 1.2e12
"""GPUs with more have HBM."""
_MEMORY_SHARES = {"H20": 0.5}
"""Its few SMs copy no faster: 2.2 of 4.8 TB/s on an H20-3e (NVIDIA/nvbandwidth#48)."""

_PRODUCT_SHARE = {"float16": 0.72, "bfloat16": 0.72, "tfloat32": 0.65, "float32": 0.7, "float8": 0.62}
_POWER_LIMITED_SHARE = 0.45
"""Cards of 70 to 400 W cannot hold their clock in large products, AMD's neither: what they reach differs by cooling."""
_LIMITED = (0.7, 0.5)
"""Shares of their expectation that are a warning, a failure."""
_PCIE_SHARE = 0.8
_COLLECTIVE = (0.75, 0.5)
"""Shares that are a warning, a failure for an all-reduce over NVLink: few GPUs or rings reach less."""
_SHARED_TREE = (0.3, 0.05)
"""The same where bytes between GPUs go over PCIe: how much of a slot's rate is left depends on the board's switches,
and may go through the host's memory."""
_BOARDS = frozenset({"H100", "H200", "H800", "GH200", "B200", "B300", "GB200", "GB300"})
"""Rows of the catalogue that are boards of 700 W and more; cards of the same chips have rows of their own."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Rate that a preflight expects of a check.

    Attributes:
        value: in the check's unit.
        source: of the value.
        warn_share, fail_share: of the value; less is a warning or a failure.
    """

    value: float
    source: str
    warn_share: float = WARN_SHARE
    fail_share: float = FAIL_SHARE

    @property
    def warn_below(self) -> float:
        """Limit of a warning."""
        return self.value * self.warn_share

    @property
    def fail_below(self) -> float:
        """Limit of a failure."""
        return self.value * self.fail_share


def expect_memory(gpu: GpuModel) -> Expectation:
    """Bytes a second that a preflight expects of a copy within memory, reads and writes counted."""
    usual = _MEMORY_SHARE if gpu.memory_bytes_per_second > _HBM_BYTES_PER_SECOND else _MEMORY_SHARE_GDDR
    share = _MEMORY_SHARES.get(gpu.name, usual)
    return Expectation(gpu.memory_bytes_per_second * share, f"{gpu.source}, {share:.0%} of it")


def expect_product(gpu: GpuModel, device_name: str, dtype: str) -> Expectation | None:
    """FLOP/s that a preflight expects of a large product; None where the catalogue has no peak for the type."""
    peak = gpu.peak_flops(dtype)
    if peak is None:
        return None
    if is_sxm_board(gpu, device_name):
        share = _PRODUCT_SHARE[dtype]
        return Expectation(peak * share, f"{gpu.source}, {share:.0%} of it")
    share = min(_POWER_LIMITED_SHARE, _PRODUCT_SHARE[dtype])
    return Expectation(peak * share, f"{gpu.source}, {share:.0%} of it", *_LIMITED)


def expect_host_copy(device_name: str, generation: int | None, lanes: int | None) -> Expectation:
    """Bytes a second that a preflight expects between pinned host memory and the GPU.

    Args:
        device_name: the driver's, which tells the generation where NVML does not.
        generation, lanes: the most that GPU and slot can; None where not known.
    """
    if generation is None or lanes is None or generation not in PCIE_BYTES_PER_SECOND:
        link = pcie_link(device_name)
        return Expectation(link.bytes_per_second, link.source)
    rate = PCIE_BYTES_PER_SECOND[generation] * lanes / 16
    return Expectation(rate * _PCIE_SHARE, f"PCIe {generation}.0 x{lanes}, {_PCIE_SHARE:.0%} of it")


def expect_peer_copy(gpu: GpuModel, device_name: str, num_links: int, num_shared: int) -> Expectation:
    """Bytes a second that a preflight expects of a copy from one GPU to another, one way.

    Args:
        num_links: NVLinks of the GPU, all together.
        num_shared: those that lead from the one to the other, by a switch or directly; 0: the bytes go over PCIe.
    """
    if gpu.link_bytes_per_second is None or not num_shared:
        link = pcie_link(device_name)
        return Expectation(link.bytes_per_second, link.source, *_SHARED_TREE)
    rate = gpu.link_bytes_per_second * min(num_shared / num_links, 1.0) * NVLINK_SHARE
    return Expectation(rate, f"{gpu.source}, {num_shared} of {counted(num_links, 'link')}, {NVLINK_SHARE:.0%} of it")


def expect_all_reduce(gpu: GpuModel, device_name: str, num_gpus: int, *, is_meshed: bool) -> Expectation:
    """Bus bandwidth that a preflight expects of an all-reduce (nccl-tests' busbw), in bytes a second.

    Args:
        is_meshed: whether NVLink joins all of them; else the bytes go over PCIe.
    """
    link = scale_up_link(gpu, device_name, num_gpus) if is_meshed else pcie_link(device_name)
    return Expectation(link.bytes_per_second, link.source, *(_COLLECTIVE if is_meshed else _SHARED_TREE))


def is_sxm_board(gpu: GpuModel | None, device_name: str) -> bool:
    """Whether a preflight's GPU is an SXM module, with full power and all NVLinks in use."""
    return "SXM" in device_name or (gpu is not None and gpu.name in _BOARDS)


def bus_bytes(num_bytes: int, num_gpus: int) -> float:
    """Bytes that cross each link in a preflight's all-reduce of `num_bytes`."""
    return num_bytes * bus_factor("all_reduce", num_gpus)
