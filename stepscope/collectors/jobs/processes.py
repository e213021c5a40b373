"""Processes on GPUs: owner, parent, cgroups, environment; their container, launcher and user name.

Without a scheduler, the processes of one container or of one launcher are one job. User names are looked up in a thread
of its own: a directory service may hang.
"""

from __future__ import annotations

import pwd
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from stepscope.collectors.host.cgroups import parse_membership
from stepscope.collectors.host.files import Files
from stepscope.collectors.host.processes import parse_fields, parse_process_stat
from stepscope.collectors.readings_builder import NoValue

_ENVIRONMENT_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_USER", "SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION"),
    *("SLURM_STEP_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "TORCHELASTIC_RUN_ID", "LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "HOSTNAME"),
)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that may belong to a job on a GPU. What may not be read is empty, or None.

    Attributes:
        pid, start: identify it; start in ticks since boot.
        command: its name, at most 15 characters.
        cgroups: paths of all hierarchies.
        variables: the requested ones of its environment; None if it may not be read.
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
        """A variable of its environment; empty if not set."""
        return (self.variables or {}).get(name, "")


class Processes:
    """Reader of the processes of jobs. What never changes is read once; a reused process id is another process.

    `end_round` forgets the processes that were not read since its last call.
    """

    def __init__(self, files: Files, further_variables: Iterable[str] = ()) -> None:
        """
        Args:
            files: of the machine; process ids are those of its PID namespace.
            further_variables: further names of variables to read: of a team, a project.
        """
        self._files = files
        self._names = frozenset((*_ENVIRONMENT_VARIABLES, *further_variables))
        self._known: dict[int, Process] = {}
        self._read: dict[int, Process] = {}

    def end_round(self) -> None:
        self._known, self._read = self._read, {}

    def read(self, pid: int) -> Process | None:
        """The process; None if it does not exist."""
        stat = self._files.parse(f"proc/{pid}/stat", parse_process_stat)
        if stat is None or isinstance(stat, NoValue):
            return None
        known = self._read.get(pid) or self._known.get(pid)
        if known is None or known.start != stat.start_ticks or known.command != stat.command:
            status, cgroup = self._files.read(f"proc/{pid}/status"), self._files.read(f"proc/{pid}/cgroup")
            uids = [] if isinstance(status, NoValue) else parse_fields(status).get("Uid", "").split()
            known = Process(
                pid,
                stat.start_ticks,
                stat.parent,
                stat.group,
                stat.command,
                self._words(f"proc/{pid}/cmdline"),
                int(uids[0]) if uids and uids[0].isdecimal() else None,
                () if isinstance(cgroup, NoValue) else tuple(dict.fromkeys(parse_membership(cgroup).values())),
                self._variables(pid),
            )
        self._read[pid] = known
        return known

    def _words(self, path: str) -> tuple[str, ...]:
        text = self._files.read(path)
        return () if isinstance(text, NoValue) else tuple(text.removesuffix("\0").split("\0")) if text else ()

    def _variables(self, pid: int) -> dict[str, str] | None:
        text = self._files.read(f"proc/{pid}/environ")
        if isinstance(text, NoValue):
            return None
        pairs = (entry.partition("=") for entry in text.split("\0"))
        return {name: value for name, sign, value in pairs if sign and name in self._names}


_CONTAINER = re.compile(r"(?:docker|libpod|cri-containerd|crio|nerdctl|lxc)[-/]([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_RANK_VARIABLES = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LAUNCHER = re.compile(
    r"(?:^|[/ ])(?:torchrun|torch\.distributed\.(?:run|launch)|mpirun|mpiexec\S*|prterun|orted|hydra_pmi_proxy|"
    r"accelerate|deepspeed|horovodrun)(?: |$)"
)
_SERVICE_COMMANDS = ("nvidia-cuda-mps", "nv-hostengine", "nvidia-persiste", "nvidia-smi", "dcgm-exporter")
"""Prefixes of commands that hold a GPU for other processes."""
_MAX_LAUNCHERS = 4


def is_gpu_service(process: Process) -> bool:
    """Whether a process holds the GPU for other processes and is not a job."""
    return process.command.startswith(_SERVICE_COMMANDS)


def container_id_of(process: Process) -> str:
    """Id of a process's container, 64 digits; empty without one."""
    return next((match[1] for path in process.cgroups if (match := _CONTAINER.search(path))), "")


def job_leader_of(process: Process, processes: Processes) -> Process:
    """The process that identifies the job: the leader of its process group, or that of its launcher.

    Sessions do not identify a job: torchrun gives each rank its own.
    """
    leader = _group_leader(process, processes)
    for _ in range(_MAX_LAUNCHERS):
        parent = processes.read(leader.parent) if leader.parent > 1 else None
        if parent is None or not (_is_rank(leader) or _LAUNCHER.search(" ".join(parent.arguments))):
            break
        leader = _group_leader(parent, processes)
    return leader


def program_name_of(process: Process) -> str:
    """Name of a job's program: the script, "train.py", or the module; else its command."""
    for word, following in pairwise((*process.arguments, "")):
        if word == "-m" and following:
            return following
        if word.endswith(".py"):
            return word.rpartition("/")[2]
    return process.command


def _is_rank(process: Process) -> bool:
    return any(process.variable(name) for name in _RANK_VARIABLES)


def _group_leader(process: Process, processes: Processes) -> Process:
    leader = processes.read(process.group) if process.group not in (0, process.pid) else None
    return leader or process


_MAX_NAMES = 1000


class UserNames:
    """Names of jobs' users by user id; the number until the name is known, and if there is none.

    Args:
        files: of the machine. If they are mounted from another one, only its /etc/passwd is read.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._names: dict[int, str] = {}
        self._asking: threading.Thread | None = None

    def name(self, uid: int | None) -> str:
        if uid is None:
            return ""
        if uid not in self._names:
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names |= _name_in_passwd(self._files, uid)
        if uid not in self._names:
            self._ask(uid)
        return self._names.get(uid, str(uid))

    def _ask(self, uid: int) -> None:
        if self._files.is_mounted:
            self._names[uid] = str(uid)
        elif self._asking is None or not self._asking.is_alive():  # at most one lookup, which may hang, at a time
            self._asking = threading.Thread(target=self._look_up, args=(uid,), name="stepscope-users", daemon=True)
            self._asking.start()

    def _look_up(self, uid: int) -> None:
        try:
            self._names[uid] = pwd.getpwuid(uid).pw_name
        except (KeyError, OSError):
            self._names[uid] = str(uid)  # there is none: not looked up again


def _name_in_passwd(files: Files, uid: int) -> dict[int, str]:
    text = files.read("etc/passwd")
    for line in [] if isinstance(text, NoValue) else text.splitlines():
        parts = line.split(":")
        if len(parts) > 2 and parts[2] == str(uid):
            return {uid: parts[0]}
    return {}


TEAM_NAMES = ("STEPSCOPE_TEAM", "stepscope.io/team", "team", "TEAM")
PROJECT_NAMES = ("STEPSCOPE_PROJECT", "stepscope.io/project", "project", "PROJECT", "WANDB_PROJECT")


@dataclass(frozen=True, slots=True)
class TeamNaming:
    """Labels of pods and variables of processes with a job's team and project; the first of each that is set counts.

    Attributes:
        team, project: names that hold the team's and the project's name.
    """

    team: tuple[str, ...] = TEAM_NAMES
    project: tuple[str, ...] = PROJECT_NAMES
