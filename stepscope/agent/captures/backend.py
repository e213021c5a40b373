"""Interface of a capture backend: the processes it can capture, requests, and their answers. No call waits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from stepscope.core.metrics.readings import Missing
from stepscope.core.protocol.messages import Answer, CaptureRequest


@dataclass(frozen=True, slots=True)
class CaptureTarget:
    """A process on this node that can be captured.

    Attributes:
        key: names the process, also to an agent that has restarted meanwhile; unlike all others of any back end.
        backend: who captures it.
        pid: in the agent's namespace; None when the kernel does not tell.
        uid: of its user.
        rank: None when unknown.
        run: the run's name; None where the process has none.
        run_directory: where its traces come to lie; None when unknown. Never from who asks for a capture.
        job: of the scheduler, as the process itself knows it; None when unknown.
        world_size: processes of its training, on all nodes; None when unknown.
        newest_step: that has ended, counted from 0; None when unknown. step_ms: how long it took.
    """

    key: str
    backend: str
    pid: int | None
    uid: int | None
    rank: int | None
    run: str | None = None
    run_directory: str | None = None
    job: str | None = None
    world_size: int | None = None
    newest_step: int | None = None
    step_ms: float | None = None


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """What a process, or the back end in its stead, says of a capture."""

    key: str
    answer: Answer


class CaptureBackend(Protocol):
    """One way to capture processes. All calls come from one thread, a few times a second.

    Attributes:
        name: short, for people.
        why_closed: why it captures nobody; None while it may.
    """

    name: str

    @property
    def why_closed(self) -> Missing | None: ...

    def targets(self) -> Sequence[CaptureTarget]:
        """The processes that could be captured now."""

    def request(self, capture: CaptureRequest, keys: Collection[str]) -> None:
        """Ask these processes; each is answered for by `answers`, at least once.

        A process that was asked with this id before is asked what has become of it: never captured twice. Keys that
        are no targets any more are passed over.
        """

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        """Leave this capture; what has become of it is answered."""

    def answers(self) -> Sequence[TargetAnswer]:
        """What was answered since the last call, the oldest first."""
