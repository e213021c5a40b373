"""Capture orders and reports: documents of the agents' HTTP API.

Steps are optimizer steps counted from 0, `*_ns` are ns since the epoch, None is unknown or not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Annotated, Any

from stepscope.core.protocol.fields import ByteLimit, FieldError, Figure, Rank, RankList, Word, read_object, whole
from stepscope.core.protocol.messages import MAX_CAPTURED_STEPS, Alignment, EarlyStop

NODE_CAPTURE_SCHEMA = "stepscope.node-capture/1"
CAPTURE_SCHEMA = "stepscope.capture/1"
CAPTURES_PATH = "/api/v1/captures"
_ID = re.compile(r"(?!rule-)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class CaptureState(StrEnum):
    """How far is a capture, of one rank or as a whole?"""

    ASKED = "asked"
    ACCEPTED = "accepted"
    STARTED = "started"
    DONE = "done"
    PARTIAL = "partial"
    """as a whole alone: some ranks have left a trace, others none"""
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether it stays so."""
        return self not in (CaptureState.ASKED, CaptureState.ACCEPTED, CaptureState.STARTED)


def _capture_id(value: Any) -> str:
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise ValueError("must be 1 to 64 letters, digits, dots, - or _, and not begin with rule-")
    return value


@dataclass(frozen=True, slots=True)
class CaptureOrder:
    """What is to be captured. Where the traces go is nobody's to ask: each run knows its directory.

    Attributes:
        id: the same at all agents that are to capture together.
        run: name of the run, or its directory to tell it from others of that name.
        job: of the scheduler, or the process group; at least one of both is given.
        ranks: None is all.
        start_step, start_unix_ns: not before; with neither as soon as all ranks can.
        max_bytes: of one rank's compressed trace.
        max_overhead: share by which captured steps may be longer than those before.
        deadline_unix_ns: given up when it has not ended by then.
    """

    id: Annotated[str, _capture_id]
    steps: Annotated[int, whole(1, MAX_CAPTURED_STEPS)]
    run: str | None = None
    job: Word | None = None
    ranks: RankList | None = None
    start_step: int | None = None
    start_unix_ns: int | None = None
    max_bytes: ByteLimit | None = None
    max_overhead: float | None = None
    deadline_unix_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankCapture:
    """One process of a capture.

    Attributes:
        key: names the process at its agent.
        backend: who captures it.
        newest_step: that it had finished when it was asked; step_ms: how long that took.
        reason: why it is so, for people.
        start_step, steps: asked for; whole in the trace when done.
        joined: another capture holds these steps and is kept for both.
        path, bytes: of the trace, as the process's own machine names it.
        overhead: captured steps longer than those before, as a share.
    """

    key: Word
    backend: Word
    rank: Rank | None = None
    world_size: Rank | None = None
    run: Word | None = None
    run_directory: str | None = None
    pid: int | None = None
    uid: int | None = None
    newest_step: int | None = None
    step_ms: float | None = None
    state: CaptureState = CaptureState.ASKED
    reason: str | None = None
    start_step: int | None = None
    steps: Annotated[int, whole(0, MAX_CAPTURED_STEPS)] | None = None
    aligned_by: Alignment | None = None
    joined: bool = False
    path: str | None = None
    bytes: int | None = None
    overhead: Figure | None = None
    stopped_by: EarlyStop | None = None


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """A capture at one agent.

    Attributes:
        host: the agent's machine.
        created_ns: when it was asked for.
        ranks: those of this node.
        is_cancelled: somebody wants it no more; ranks that have been told so say the rest.
    """

    host: Word
    created_ns: int
    order: Annotated[CaptureOrder, order_of]
    ranks: tuple[RankCapture, ...]
    is_cancelled: bool = False

    @property
    def state(self) -> CaptureState:
        """As a whole."""
        return whole_state(self.ranks)


def whole_state(of_ranks: tuple[RankCapture, ...]) -> CaptureState:
    """The state of all of them together: open while any is, and then the best that all have reached."""
    states = {one.state for one in of_ranks}
    for state in (CaptureState.STARTED, CaptureState.ASKED, CaptureState.ACCEPTED):
        if state in states:
            return state
    if CaptureState.DONE in states:
        return CaptureState.DONE if len(states) == 1 else CaptureState.PARTIAL
    for state in (CaptureState.CANCELLED, CaptureState.FAILED):
        if state in states:
            return state
    return CaptureState.REFUSED


def report_document(report: CaptureReport) -> dict[str, Any]:
    """The report as JSON has it."""
    return {"schema": NODE_CAPTURE_SCHEMA, "state": report.state, **asdict(report)}


def order_of(document: object) -> CaptureOrder:
    """The order in a document.

    Raises:
        FieldError: it is none; a field is wrong, or unknown: what is misspelled must not be passed over.
    """
    if not isinstance(document, Mapping):
        raise FieldError("an order is a JSON object")
    unknown = sorted(set(document) - {each.name for each in fields(CaptureOrder)})
    if unknown:
        raise FieldError(f'unknown field "{unknown[0][:80]}"')
    order = read_object(CaptureOrder, document)
    if order.run is None and order.job is None:
        raise FieldError('"run" or "job" must say what to capture')
    return order


def report_of(document: object) -> CaptureReport:
    """The report in a document; unknown fields are passed over.

    Raises:
        FieldError: it is none.
    """
    return read_object(CaptureReport, document)
