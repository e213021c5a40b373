"""Which processes can be captured, what is each one's rank, and where do its traces come to lie?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepscope.collectors.kineto_daemon.environment import JobPlace, job_place
from stepscope.collectors.kineto_daemon.keeping import run_name
from stepscope.collectors.kineto_daemon.registry import KinetoProcess

KEY_PREFIX = "kineto-"
"""Of every key."""
_SOCKET_PREFIX = "dynoconfigclient"


@dataclass(frozen=True, slots=True)
class Target:
    """A process that can be captured.

    Attributes:
        key: names it, also to an agent that has restarted meanwhile.
        process: as it asks.
        place: in its job.
        run: the name of its job here.
        run_directory: where its traces come to lie.
    """

    key: str
    process: KinetoProcess
    place: JobPlace
    run: str
    run_directory: Path


class Targets:
    """Looks up each process once, as long as it asks. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[JobPlace, str]] = {}

    def of(self, processes: Iterable[KinetoProcess]) -> dict[str, Target]:
        """The targets by key. Launchers are left out: processes without a rank above one that has a rank."""
        by_key = {key_of(process): process for process in processes}
        self._known = {key: self._known.get(key) or _looked_up(process) for key, process in by_key.items()}
        above_ranks = {
            pid
            for key, process in by_key.items()
            if self._known[key][0].rank is not None and process.is_in_our_namespace
            for pid in process.ancestors
        }
        return {
            key: Target(key, process, place, run, self._folder / run)
            for key, process in by_key.items()
            for place, run in [self._known[key]]
            if place.rank is not None or process.peer.pid not in above_ranks
        }


def key_of(process: KinetoProcess) -> str:
    """A process's key: its socket has a random name that lives as long as the process."""
    address = process.address
    name = address.decode(errors="replace") if isinstance(address, bytes) else address.rpartition("/")[2]
    plain = "".join(c for c in name.removeprefix("\0").removeprefix(_SOCKET_PREFIX) if c.isalnum() or c == "-")
    return KEY_PREFIX + plain[:64]


def ranks_to_keep(targets: Iterable[Target], in_trace: Mapping[str, int | None]) -> dict[str, int]:
    """The rank that each trace is kept as: its environment's, else its trace's, else the next that is free.

    Args:
        targets: the processes.
        in_trace: the rank that the trace of each key tells.
    """
    ordered = sorted(targets, key=lambda target: target.process.peer.pid)
    ranks: dict[str, int] = {}
    for target in ordered:
        rank = in_trace[target.key] if target.place.rank is None else target.place.rank
        if rank is not None and rank not in ranks.values():
            ranks[target.key] = rank
    free = (rank for rank in range(2 * len(ordered)) if rank not in set(ranks.values()))
    return ranks | {target.key: next(free) for target in ordered if target.key not in ranks}


def _looked_up(process: KinetoProcess) -> tuple[JobPlace, str]:
    place = job_place(process.peer.pid)
    return place, run_name(process, rank=place.rank, run_id=place.run_id)
