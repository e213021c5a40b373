"""Captures: the request, the processes it selects, their progress, and the documents of the agents' HTTP API.

The same request and progress go between the agent and training (`messages`). Steps are optimizer steps of the run
counted from 0, `*_ns` are ns since the epoch, None is unknown or not requested.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from stepscope.core.protocol import fields

NODE_CAPTURE_SCHEMA = "stepscope.node-capture/1"
CAPTURE_SCHEMA = "stepscope.capture/1"
CAPTURES_PATH = "/api/v1/captures"
MAX_CAPTURED_STEPS = 1000
RULE_PREFIX = "rule-"
"""Begins the ids of captures that training requests itself, by a rule; no other id may begin so."""
_ID = re.compile(rf"(?!{RULE_PREFIX})[A-Za-z0-9][A-Za-z0-9._-]{{0,63}}")


class CaptureState(StrEnum):
    """Capture protocol: state of a capture, of one process or as a whole."""

    ASKED = "asked"
    """requested, not answered yet"""
    ACCEPTED = "accepted"
    """it will start at `start_step`"""
    STARTED = "started"
    DONE = "done"
    """the trace is whole at `path`"""
    PARTIAL = "partial"
    """of a capture as a whole: some ranks have a trace, others none"""
    REFUSED = "refused"
    """it will not take place; `reason` says why"""
    CANCELLED = "cancelled"
    """cancelled on request, or its deadline passed; no trace is kept"""
    FAILED = "failed"
    """it was accepted and left no trace; `reason` says why"""

    @property
    def is_final(self) -> bool:
        """Whether no other state follows."""
        return self not in (CaptureState.ASKED, CaptureState.ACCEPTED, CaptureState.STARTED)


class Alignment(StrEnum):
    """Capture protocol: how the ranks agreed on the first step of a capture."""

    STEP = "step"
    """it was given, or the job has one rank"""
    STORE = "store"
    """the first rank to propose one fixed it for all, in the job's own store"""
    MULTIPLE = "multiple"
    """each rank began after a multiple of some number of its own steps, and the traces were found to begin together"""
    TIME = "time"
    """each rank by its own clock, so that ranks may differ by some steps: the job's ranks share no store"""


class EarlyStop(StrEnum):
    """Capture protocol: why a capture holds fewer steps than requested."""

    MAX_BYTES = "max_bytes"
    MAX_OVERHEAD = "max_overhead"
    DEADLINE = "deadline"
    TRAINING_ENDED = "training_ended"
    OTHER_PROFILER = "other_profiler"


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Request to trace `steps` steps; a message from the agent to training.

    Where the traces go is not part of it: each run knows its directory. With neither start it begins as soon as all
    ranks can.

    Attributes:
        id: the same for all ranks and agents that are to capture together.
        start_step, start_unix_ns: not before; where both are given, `start_step` counts.
        ranks: None is all.
        max_bytes: of one rank's compressed trace.
        max_overhead: share by which profiled steps may be longer than those before (0.5: half as long again).
        deadline_unix_ns: not started after it, and over by the end of the step in which it passes.
    """

    type: ClassVar[str] = "capture"
    id: fields.Word
    steps: Annotated[int, fields.whole_number_between(1, MAX_CAPTURED_STEPS)]
    start_step: int | None = None
    start_unix_ns: int | None = None
    ranks: fields.RankList | None = None
    max_bytes: fields.ByteLimit | None = None
    max_overhead: float | None = None
    deadline_unix_ns: int | None = None


@dataclass(frozen=True, slots=True)
class CaptureSelector:
    """Capture protocol: the training that a capture is of; at least one of both is given.

    Attributes:
        run: name of the run, or its directory to distinguish it from others of that name.
        job: id of the scheduler's job, or of the process group.
        uid: of the user whose training it is; None: of the user to whom the name belongs, see the agent's `RunClaims`.
    """

    run: str | None = None
    job: fields.Word | None = None
    uid: int | None = None

    def __str__(self) -> str:
        return f"job {self.job}" if self.run is None else f"run {self.run}"


@dataclass(frozen=True, slots=True)
class CaptureOrder:
    """Capture protocol: a capture request with the training it is for: what a POST of the HTTP API holds."""

    request: Annotated[CaptureRequest, fields.EMBEDDED]
    selector: Annotated[CaptureSelector, fields.EMBEDDED]


@dataclass(frozen=True, slots=True)
class CaptureTarget:
    """Capture protocol: a process on this node that can be captured.

    Attributes:
        key: id of the process, unique across backends, the same after a restart of the agent.
        backend: name of the backend that captures it.
        world_size: processes of its training, on all nodes.
        run: name of the run; None where the process has none.
        run_directory: where its traces go. Never taken from who requests a capture.
        pid: in the agent's namespace; None when the kernel does not tell.
        uid: of its user.
        newest_step: the newest finished step; step_ms: its duration.
        job: id of the scheduler's job, as the process itself knows it. Not part of the document.
        known_since: when its user began to use the run's name, monotonic seconds; None is unknown. Not part of the
            document.
    """

    key: fields.Word
    backend: fields.Word
    rank: fields.Rank | None = None
    world_size: fields.Rank | None = None
    run: fields.Word | None = None
    run_directory: str | None = None
    pid: int | None = None
    uid: int | None = None
    newest_step: int | None = None
    step_ms: float | None = None
    job: fields.Word | None = None
    known_since: float | None = None

    @property
    def sort_key(self) -> tuple[str, int, str]:
        """By run and rank."""
        return self.run or "", -1 if self.rank is None else self.rank, self.key


@dataclass(frozen=True, slots=True)
class CaptureProgress:
    """Capture protocol: progress of a capture in one process.

    Attributes:
        reason: why it is in this state, for people.
        start_step: its first step.
        steps: requested, or whole in the trace once it is done.
        joined: another capture holds these steps and is kept for both; `start_step` and `steps` are that one's.
        path, bytes: of the trace, as the process's own machine names it.
        overhead: measured share by which profiled steps are longer than those before.
    """

    state: CaptureState
    reason: str | None = None
    start_step: int | None = None
    steps: Annotated[int, fields.whole_number_between(0, MAX_CAPTURED_STEPS)] | None = None
    aligned_by: Alignment | None = None
    joined: bool = False
    path: str | None = None
    bytes: int | None = None
    overhead: fields.Figure | None = None
    stopped_by: EarlyStop | None = None


@dataclass(frozen=True, slots=True)
class CaptureUpdate:
    """Capture protocol: new progress of one capture in one process."""

    capture_id: str
    key: str
    progress: CaptureProgress


@dataclass(frozen=True, slots=True)
class RankCapture:
    """Capture protocol: a capture in one process."""

    target: Annotated[CaptureTarget, fields.EMBEDDED]
    progress: Annotated[CaptureProgress, fields.EMBEDDED]


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """Capture protocol: a capture at one agent.

    Attributes:
        host: the agent's machine.
        created_ns: when it was requested.
        ranks: those of this node.
        is_cancelled: a cancellation was requested; ranks that know of it report their own state.
    """

    host: fields.Word
    created_ns: int
    order: Annotated[CaptureOrder, read_order]
    ranks: tuple[RankCapture, ...]
    is_cancelled: bool = False

    @property
    def id(self) -> str:
        """Of the request."""
        return self.order.request.id

    @property
    def state(self) -> CaptureState:
        """As a whole."""
        return state_of_ranks(self.ranks)


def state_of_ranks(ranks: Sequence[RankCapture]) -> CaptureState:
    """Capture protocol: state of all ranks together: open while any is, afterwards the best that all have reached."""
    states = {one.progress.state for one in ranks}
    for state in (CaptureState.STARTED, CaptureState.ASKED, CaptureState.ACCEPTED):
        if state in states:
            return state
    if CaptureState.DONE in states and len(states) > 1:
        return CaptureState.PARTIAL
    best_first = (CaptureState.DONE, CaptureState.CANCELLED, CaptureState.FAILED)
    return next((state for state in best_first if state in states), CaptureState.REFUSED)


def order_document(order: CaptureOrder) -> dict[str, Any]:
    """Capture protocol: JSON object of an order; without a `uid` that is not given, as older agents do not know it."""
    return {name: value for name, value in fields.flat_fields(order) if name != "uid" or value is not None}


_AGENTS_OWN = ("job", "known_since")


def report_document(report: CaptureReport) -> dict[str, Any]:
    """Capture protocol: JSON object of a report, `stepscope.node-capture/1`; `read_object` reads it."""
    return {
        "schema": NODE_CAPTURE_SCHEMA,
        "state": report.state,
        "host": report.host,
        "created_ns": report.created_ns,
        "order": order_document(report.order),
        "ranks": [{k: value for k, value in fields.flat_fields(one) if k not in _AGENTS_OWN} for one in report.ranks],
        "is_cancelled": report.is_cancelled,
    }


def read_order(document: object) -> CaptureOrder:
    """Read the capture order in a JSON object of the protocol.

    Raises:
        FieldError: not an object; a field is wrong, or unknown: a misspelled one must not be ignored.
    """
    if not isinstance(document, Mapping):
        raise fields.FieldError("an order is a JSON object")
    known = {each.name for kind in (CaptureRequest, CaptureSelector) for each in dataclasses.fields(kind)}
    unknown = sorted(set(document) - known)
    if unknown:
        raise fields.FieldError(f'unknown field "{unknown[0][:80]}"')
    order = fields.read_object(CaptureOrder, document)
    if _ID.fullmatch(order.request.id) is None:
        raise fields.FieldError(f'"id" must be 1 to 64 letters, digits, dots, - or _, and not begin with {RULE_PREFIX}')
    if order.selector.run is None and order.selector.job is None:
        raise fields.FieldError('"run" or "job" must say what to capture')
    return order
