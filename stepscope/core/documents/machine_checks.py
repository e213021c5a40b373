"""Checks of a machine: the typed forms of `stepscope.doctor/1` and `stepscope.preflight/1`.

Rates are bytes or floating point operations a second, shares 0 to 1, None means unknown or that there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.documents.evidence import Notice

DOCTOR_SCHEMA = "stepscope.doctor/1"


class DoctorState(StrEnum):
    """How a thing is; the later ones are worse."""

    OK = "ok"
    WARN = "warn"  # it works, with something missing or slower than it could be
    FAIL = "fail"  # something does not work


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """One thing that was looked at.

    Attributes:
        topic: what: "torch", "driver", "NCCL_P2P_DISABLE".
        state: how it is.
        found: what is so, in one line.
        what_next: what to do; empty where nothing is to be done.
    """

    topic: str
    state: DoctorState
    found: str
    what_next: str = ""


@dataclass(frozen=True, slots=True)
class Doctor:
    """The whole document, lines in the order in which things were looked at."""

    schema: str
    host: str
    lines: list[DoctorLine]
    warnings: list[Notice]


PREFLIGHT_SCHEMA = "stepscope.preflight/1"


class Outcome(StrEnum):
    """What became of a check; the later ones are worse."""

    SKIPPED = "skipped"  # it could not be made here, or was not asked for
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class CheckGroup(StrEnum):
    """Checks that are chosen together."""

    STATE = "state"
    MEMORY = "memory"
    MATMUL = "matmul"
    RESULTS = "results"
    HOST = "host"
    PEERS = "peers"
    ALL_REDUCE = "all_reduce"


CHECKS: dict[str, CheckGroup] = {
    "start": CheckGroup.MEMORY,
    "driver": CheckGroup.STATE,
    "in_use": CheckGroup.STATE,
    "ecc": CheckGroup.STATE,
    "row_remap": CheckGroup.STATE,
    "retired_pages": CheckGroup.STATE,
    "xid": CheckGroup.STATE,
    "throttling": CheckGroup.STATE,
    "pcie_link": CheckGroup.STATE,
    "nvlink": CheckGroup.STATE,
    "fabric": CheckGroup.STATE,
    "memory_bandwidth": CheckGroup.MEMORY,
    **{f"matmul_{dtype}": CheckGroup.MATMUL for dtype in ("bfloat16", "float16", "tfloat32", "float32", "float8")},
    **{f"results_{dtype}": CheckGroup.RESULTS for dtype in ("bfloat16", "float16", "tfloat32", "float32", "float8")},
    "host_to_device": CheckGroup.HOST,
    "device_to_host": CheckGroup.HOST,
    "peer_copy": CheckGroup.PEERS,
    "all_reduce": CheckGroup.ALL_REDUCE,
}
"""Every check, in the order in which people read them, and its group."""

DTYPES = tuple(name.removeprefix("matmul_") for name in CHECKS if name.startswith("matmul_"))
"""Element types of matrix products, in the words of `core.hardware`."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one GPU, of a pair, or of a group.

    Attributes:
        check: a name of `CHECKS`.
        gpus: which; a pair is source and target; none where a name was asked for that no GPU here has.
        outcome: what became of it.
        detail: one line for people: what is wrong and what next, or why it was skipped.
        value: measured; the median of many runs where it is a rate.
        unit: of value, expected and the limits: "bytes/s", "FLOP/s" or "".
        expected: what such a GPU gives.
        warn_below, fail_below: limits of the value; None where it is judged otherwise.
        source: where the expectation is from.
        spread: interquartile range of the runs over their median.
        num_runs: how many were timed.
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
    """One GPU, or one process on the CPU.

    Attributes:
        index: as in `--gpus`.
        name: the driver's.
        uuid, pci_bus_id: which card it is; empty where unknown.
        outcome: the worst of its checks.
        sm_clock_hertz: lowest and highest clock seen while it computed; None where it was not seen.
        temperature_celsius: highest temperature seen; None likewise.
        power_watts: highest power seen; None likewise.
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
    """The whole document.

    Attributes:
        host: name of the node.
        device_type: "cuda", or "cpu" where the code itself is tried.
        time_ns: of the start, ns since the epoch.
        seconds: how long it took.
        quick: whether it was the short form.
        versions: of torch, CUDA and the driver, where known.
        outcome: the worst of all checks.
        gpus, checks: of what and what.
        warnings: what was wrong with the preflight itself.
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


_ORDER = list(Outcome)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of them; skipped where there is none."""
    return max(outcomes, key=_ORDER.index, default=Outcome.SKIPPED)
