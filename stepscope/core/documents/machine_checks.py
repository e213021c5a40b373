"""Checks of a machine: the typed forms of `stepscope.doctor/1` and `stepscope.preflight/1`.

Rates are bytes or floating point operations per second, shares 0 to 1, None means unknown or absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.vocabulary import Notice

DOCTOR_SCHEMA = "stepscope.doctor/1"


class DoctorState(StrEnum):
    """Doctor document: result of a doctor check, from best to worst."""

    OK = "ok"
    WARN = "warn"  # it works, but something is missing or slow
    FAIL = "fail"  # it does not work


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """Doctor document: one check of `stepscope doctor`.

    Attributes:
        topic: its subject: "torch", "driver", "NCCL_P2P_DISABLE".
        found: the result in one line.
        what_next: what to do; empty where nothing is needed.
    """

    topic: str
    state: DoctorState
    found: str
    what_next: str = ""


@dataclass(frozen=True, slots=True)
class Doctor:
    """The document `stepscope.doctor/1`, lines in the order of the checks."""

    schema: str
    host: str
    lines: list[DoctorLine]
    warnings: list[Notice]


PREFLIGHT_SCHEMA = "stepscope.preflight/1"


class Outcome(StrEnum):
    """Preflight document: result of a preflight check, from best to worst."""

    SKIPPED = "skipped"  # not possible here, or not selected
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class CheckGroup(StrEnum):
    """Preflight document: checks that are selected together."""

    STATE = "state"
    MEMORY = "memory"
    MATMUL = "matmul"
    RESULTS = "results"
    HOST = "host"
    PEERS = "peers"
    ALL_REDUCE = "all_reduce"


CHECKS: dict[str, CheckGroup] = {
    "start": CheckGroup.MEMORY,
    **dict.fromkeys(("driver", "in_use", "ecc", "row_remap", "retired_pages", "xid", "throttling"), CheckGroup.STATE),
    **dict.fromkeys(("pcie_link", "nvlink", "fabric"), CheckGroup.STATE),
    "memory_bandwidth": CheckGroup.MEMORY,
    **{f"matmul_{dtype}": CheckGroup.MATMUL for dtype in ("bfloat16", "float16", "tfloat32", "float32", "float8")},
    **{f"results_{dtype}": CheckGroup.RESULTS for dtype in ("bfloat16", "float16", "tfloat32", "float32", "float8")},
    "host_to_device": CheckGroup.HOST,
    "device_to_host": CheckGroup.HOST,
    "peer_copy": CheckGroup.PEERS,
    "all_reduce": CheckGroup.ALL_REDUCE,
}
"""All checks in the order of display, and the group of each."""

DTYPES = tuple(name.removeprefix("matmul_") for name in CHECKS if name.startswith("matmul_"))
"""Element types of the matrix products, as in the GPU catalogue."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Preflight document: one check of one GPU, of a pair, or of a group.

    Attributes:
        check: a key of `CHECKS`.
        gpus: the GPUs checked; a pair is source and target; empty for a requested name that no GPU has.
        detail: one line for people: the problem and the next step, or why it was skipped.
        value: measured; for rates the median of many runs.
        unit: of value, expected and limits: "bytes/s", "FLOP/s" or "".
        expected: for such a GPU.
        warn_below, fail_below: limits of the value; None where it has no limits.
        source: of the expectation.
        spread: interquartile range of the runs / their median.
        num_runs: number of timed runs.
    """

    check: str
    gpus: tuple[int, ...]
    outcome: Outcome
    detail: str = ""
    value: float | None = None
    unit: str = ""
    expected: float | None = None
    warn_below: float | None = None
    fail_below: float | None = None
    source: str = ""
    spread: float | None = None
    num_runs: int | None = None


@dataclass(frozen=True, slots=True)
class PreflightGpu:
    """Preflight document: one GPU, or one process on the CPU.

    Attributes:
        index: as in `--gpus`.
        name: the driver's device name.
        uuid, pci_bus_id: empty where unknown.
        outcome: the worst of its checks.
        sm_clock_hertz: lowest and highest clock during the computations.
        temperature_celsius, power_watts: highest values during the computations.
    """

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    outcome: Outcome
    sm_clock_hertz: tuple[float, float] | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


@dataclass(frozen=True, slots=True)
class Preflight:
    """The document `stepscope.preflight/1`.

    Attributes:
        host: name of the node.
        device_type: "cuda", or "cpu" for a trial of the code itself.
        time_ns: of the start, ns since the epoch.
        seconds: duration.
        quick: whether it was the short form.
        versions: of torch, CUDA and the driver, where known.
        outcome: the worst of all checks.
        warnings: problems of the preflight itself.
    """

    schema: str
    host: str
    device_type: str
    time_ns: int
    seconds: float
    quick: bool
    versions: dict[str, str]
    outcome: Outcome
    gpus: list[PreflightGpu]
    checks: list[CheckResult]
    warnings: list[Notice]


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Document of a preflight: worst of the outcomes in its fields; SKIPPED without any."""
    return max(outcomes, key=list(Outcome).index, default=Outcome.SKIPPED)
