"""What do /proc's files say of the processes on GPUs: whose, started by whom, in which cgroup, with which variables?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.processes import parse_fields

_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_USER", "SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION"),
    *("SLURM_STEP_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "TORCHELASTIC_RUN_ID", "LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "HOSTNAME"),
)


@dataclass(frozen=True, slots=True)
class Process:
    """One process. What may not be read is empty, or None.

    Attributes:
        pid, start: which; start in ticks since boot.
        parent, group: ids of its parent and its process group.
        command: its name, at most 15 characters.
        arguments: its command line.
        uid: whose.
        cgroups: paths of all hierarchies.
        variables: those of its environment that are asked for; None where it may not be read.
    """

    pid: int
    start: int
    parent: int
    group: int
    command: str
    arguments: tuple[str, ...]
    uid: int | None
    cgroups: tuple[str, ...]
    variables: dict[str, str] | None

    def variable(self, name: str) -> str:
        """Of its environment; empty without."""
        return (self.variables or {}).get(name, "")


class Processes:
    """Reads processes. What never changes is read once; a process id that came back is another process.

    Whoever reads calls `end_round` now and then: what was not read since the last time is forgotten.
    """

    def __init__(self, files: Files, further_variables: Iterable[str] = ()) -> None:
        """
        Args:
            files: of the machine; process ids are those of its PID namespace.
            further_variables: names that are asked for beside: of a team, a project.
        """
        self._files = files
        self._names = frozenset((*_VARIABLES, *further_variables))
        self._known: dict[int, Process] = {}
        self._read: dict[int, Process] = {}

    def end_round(self) -> None:
        """Forget what nobody has read since the last time."""
        self._known, self._read = self._read, {}

    def read(self, pid: int) -> Process | None:
        """The process; None where there is none."""
        stat = self._stat(pid)
        if stat is None:
            return None
        known = self._read.get(pid) or self._known.get(pid)
        if known is None or known.start != stat[3] or known.command != stat[0]:
            known = self._read_anew(pid, *stat)
        self._read[pid] = known
        return known

    def _read_anew(self, pid: int, command: str, parent: int, group: int, start: int) -> Process:
        status, cgroup = self._files.read(f"proc/{pid}/status"), self._files.read(f"proc/{pid}/cgroup")
        uids = [] if isinstance(status, Unread) else parse_fields(status).get("Uid", "").split()
        return Process(
            pid,
            start,
            parent,
            group,
            command,
            self._words(f"proc/{pid}/cmdline"),
            int(uids[0]) if uids and uids[0].isdecimal() else None,
            () if isinstance(cgroup, Unread) else parse_cgroups(cgroup),
            self._variables(pid),
        )

    def _stat(self, pid: int) -> tuple[str, int, int, int] | None:
        text = self._files.read(f"proc/{pid}/stat")
        return None if isinstance(text, Unread) else parse_stat(text)

    def _words(self, path: str) -> tuple[str, ...]:
        text = self._files.read(path)
        return () if isinstance(text, Unread) else tuple(text.removesuffix("\0").split("\0")) if text else ()

    def _variables(self, pid: int) -> dict[str, str] | None:
        text = self._files.read(f"proc/{pid}/environ")
        if isinstance(text, Unread):
            return None
        pairs = (entry.partition("=") for entry in text.split("\0"))
        return {name: value for name, sign, value in pairs if sign and name in self._names}


def parse_stat(text: str) -> tuple[str, int, int, int] | None:
    """Command, parent, process group and start (ticks since boot) of /proc/<pid>/stat; None where it is no such."""
    before, bracket, after = text.rpartition(")")
    words = after.split()
    _, opening, command = before.partition("(")
    numbers = (words[1], words[2], words[19]) if len(words) > 19 else ()
    if not bracket or not opening or not numbers or not all(word.isdecimal() for word in numbers):
        return None
    return command, int(words[1]), int(words[2]), int(words[19])


def parse_cgroups(text: str) -> tuple[str, ...]:
    """Paths of /proc/<pid>/cgroup, each once."""
    paths = (line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2)
    return tuple(dict.fromkeys(path.removesuffix(" (deleted)") for path in paths))
