"""What does the agent know of a training process that speaks to it?"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TrainingRank:
    """One process under `profile()`, at one moment. None is unknown; ages end at that moment.

    Attributes:
        key: names the process, also to an agent that has restarted.
        run, run_directory: the run's name, and where it lies.
        pid: in the agent's namespace; None when the kernel does not tell.
        uid: of the process's user.
        host: what the process calls its machine.
        start_ns: when measuring began, ns since the epoch.
        mesh: sizes by dimension.
        heartbeat_age_ms: since it was heard last.
        state: of the open step: wait, warmup, active (being captured).
        doing: the named phase that the open step is in.
        step: newest finished step, counted from 0; None before the first.
        step_age_ms: since that ended, or since the start.
        phases_ms: parts of it by name.
        figures: loss, tokens, ... of the newest step that has them all.
    """

    key: str
    run: str
    run_directory: str
    rank: int
    local_rank: int
    world_size: int
    pid: int | None
    uid: int | None
    host: str
    start_ns: int
    heartbeat_age_ms: float
    mesh: dict[str, int] = field(default_factory=dict)
    gpu_uuid: str | None = None
    state: str | None = None
    doing: str | None = None
    step: int | None = None
    step_ms: float | None = None
    step_age_ms: float | None = None
    data_wait_ms: float | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    figures: dict[str, int | float] = field(default_factory=dict)
