"""Which processes are to end, and which cannot? Those that hang in the kernel are left behind, not waited for."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.agent.isolation.process import Probe


@dataclass(slots=True)
class _Ending:
    probe: Probe
    suspect: str | None
    kill_at: float
    is_killed: bool


class Graveyard:
    """Processes that were told to end, or killed."""

    def __init__(self, grace_seconds: float) -> None:
        """
        Args:
            grace_seconds: what one that was told to end may take.
        """
        self._grace = grace_seconds
        self._endings: list[_Ending] = []

    def kill(self, probe: Probe, suspect: str | None, now: float) -> None:
        """End a process that hangs or has ended.

        Args:
            probe: the process.
            suspect: key of the GPU that it is at, "" for none, None for the driver as a whole.
            now: monotonic time, seconds.
        """
        probe.kill()
        self._endings.append(_Ending(probe, suspect, now, is_killed=True))

    def finish(self, probe: Probe, now: float) -> None:
        """Tell a process to end."""
        probe.finish()
        self._endings.append(_Ending(probe, "", now + self._grace, is_killed=False))

    def bury(self, now: float) -> None:
        """Reap what has ended, kill what should have."""
        self._endings = [ending for ending in self._endings if not ending.probe.is_gone()]
        for ending in self._endings:
            if not ending.is_killed and now >= ending.kill_at:
                ending.probe.kill()
                ending.is_killed, ending.kill_at = True, now

    def is_out(self, suspect: str | None) -> bool:
        """Whether a call on this GPU has not returned, though its process was killed."""
        return any(
            ending.is_killed and ending.suspect == suspect and not ending.probe.is_gone() for ending in self._endings
        )

    def left_behind(self, now: float, after_seconds: float) -> int:
        """How many processes are still there so long after they were killed."""
        return sum(ending.is_killed and now - ending.kill_at >= after_seconds for ending in self._endings)

    @property
    def is_empty(self) -> bool:
        """Whether all have ended."""
        return not self._endings
