"""What do a training process and the agent on its node say to each other? `agent_protocol` puts it on the wire.

Steps are optimizer steps of the run counted from 0, `*_unix_ns` and `start_ns` are ns since the epoch, None is unknown.
docs/capture.md says who sends what when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

PROTOCOL_VERSION = 1

SOCKET_VARIABLE = "STEPSCOPE_AGENT_SOCKET"
"""Environment: path of the agent's socket, @name for an abstract one, empty for none."""

DEFAULT_SOCKET = "/run/stepscope/agent.sock"

MAX_CAPTURED_STEPS = 1000


class AnswerState(StrEnum):
    """What has become of a capture that was asked for."""

    ACCEPTED = "accepted"
    """it will start at `start_step`"""
    STARTED = "started"
    DONE = "done"
    """the trace is whole at `path`"""
    REFUSED = "refused"
    """it will not take place; `reason` says why"""
    CANCELLED = "cancelled"
    """asked to be left, or its deadline passed; no trace is kept"""
    FAILED = "failed"
    """it was accepted and left no trace; `reason` says why"""

    @property
    def is_final(self) -> bool:
        """Whether no other answer follows."""
        return self not in (AnswerState.ACCEPTED, AnswerState.STARTED)


class Alignment(StrEnum):
    """How did the ranks come to the step at which a capture starts?"""

    STEP = "step"
    """it was given, or the job has one rank"""
    STORE = "store"
    """the first rank to ask fixed it for all, in the job's own store"""
    MULTIPLE = "multiple"
    """each rank began after a multiple of some number of its own steps, and the traces were found to begin together"""
    TIME = "time"
    """each rank by its own clock, so that ranks may differ by some steps: the job's ranks share no store"""


class EarlyStop(StrEnum):
    """Why does a capture hold fewer steps than were asked for?"""

    MAX_BYTES = "max_bytes"
    MAX_OVERHEAD = "max_overhead"
    DEADLINE = "deadline"
    TRAINING_ENDED = "training_ended"
    OTHER_PROFILER = "other_profiler"


@dataclass(frozen=True, slots=True)
class Hello:
    """Training to agent, first on every connection, and again when a field has become known."""

    type: ClassVar[str] = "hello"
    run: str
    run_directory: str
    rank: int
    local_rank: int
    world_size: int
    pid: int
    host: str
    start_ns: int
    mesh: dict[str, int] = field(default_factory=dict)
    """sizes by dimension; those not known are absent"""
    gpu_uuid: str | None = None
    """GPU-... or MIG-...; None when it cannot be told without starting CUDA"""
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Step:
    """Training to agent, once a second: the newest finished step, and how long the open one has lasted."""

    type: ClassVar[str] = "step"
    age_ms: float
    """since the newest finished step ended, or since the start"""
    state: str = "wait"
    """of the open step: wait | warmup | active"""
    index: int | None = None
    """the newest finished step; None before the first"""
    ms: float | None = None
    data_wait_ms: float | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    figures: dict[str, int | float] = field(default_factory=dict)
    """tokens, loss, ... of the newest step that has them all; what is not finite is left out"""
    doing: str | None = None
    """what the open step is in that takes long by nature: the innermost named phase"""


@dataclass(frozen=True, slots=True)
class Bye:
    """Training to agent: measuring ends well. Without it, the end of the connection is the end of the process."""

    type: ClassVar[str] = "bye"


@dataclass(frozen=True, slots=True)
class Welcome:
    """Agent to training, after hello, as it likes: which version it speaks. Training leaves one that is not its own."""

    type: ClassVar[str] = "welcome"
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Agent to training: trace `steps` steps. With neither start it begins as soon as all ranks can."""

    type: ClassVar[str] = "capture"
    id: str
    steps: int
    start_step: int | None = None
    start_unix_ns: int | None = None
    """not before this time; where both are given, `start_step` counts"""
    ranks: tuple[int, ...] | None = None
    """None is all"""
    max_bytes: int | None = None
    """of one rank's compressed trace"""
    max_overhead: float | None = None
    """share by which captured steps may be longer than those before (0.5: half as long again)"""
    deadline_unix_ns: int | None = None
    """not started after it, and over by the end of the step in which it passes"""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Agent to training: leave this capture; one that runs is stopped and leaves no trace."""

    type: ClassVar[str] = "cancel"
    id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Training to agent: what has become of a capture."""

    type: ClassVar[str] = "answer"
    id: str
    state: AnswerState
    reason: str | None = None
    start_step: int | None = None
    steps: int | None = None
    """asked for, or whole in the trace once it is done"""
    aligned_by: Alignment | None = None
    joined: bool = False
    """another capture holds these steps and is kept for both; `start_step` and `steps` are that one's"""
    path: str | None = None
    bytes: int | None = None
    overhead: float | None = None
    """measured: captured steps longer than those before, as a share"""
    stopped_by: EarlyStop | None = None


Message = Hello | Step | Bye | Welcome | CaptureRequest | Cancel | Answer
