"""What is a Slurm job called, and who pays? Asked of squeue where processes' environments may not be read.

One question for all unknown jobs, at most once a minute, in a thread of its own; what it does not know is remembered,
as its server is one for all nodes.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stepscope.core.job_metrics import JOB
from stepscope.core.readings import Collection, Missing, MissingReason

_FORMAT = "%A|%F|%K|%u|%a|%P|%j"
_SECONDS = 10.0
_PAUSE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 3600.0
_MOST_JOBS = 100


@dataclass(frozen=True, slots=True)
class SlurmNames:
    """What squeue tells of a job: its user, account, partition, name, and "120_3" of an array."""

    user: str
    account: str
    queue: str
    name: str
    array: str


class SlurmNamesCollector:
    """Names of the jobs that are wanted. `collect` asks, all else answers at once from what is known."""

    def __init__(self, command: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            command: squeue's path; looked for where none is given.
            clock: seconds.
        """
        self._command = command or shutil.which("squeue")
        self._clock = clock
        self._known: dict[str, SlurmNames | None] = {}
        self._wanted: frozenset[str] = frozenset()
        self._due = 0.0
        self._pause = _PAUSE_SECONDS
        self._failure: Missing | None = None

    @property
    def is_possible(self) -> bool:
        """Whether there is a squeue."""
        return self._command is not None

    def names(self, job_id: str) -> SlurmNames | None:
        """What is known of a job."""
        return self._known.get(job_id)

    def want(self, job_ids: Iterable[str]) -> None:
        """Jobs of which more would be good to know; all others are forgotten."""
        self._wanted = frozenset(job_ids)

    def collect(self) -> Collection:
        """Ask if there is anything to ask; nothing is raised."""
        now, wanted = self._clock(), self._wanted
        self._known = {job_id: names for job_id, names in self._known.items() if job_id in wanted}
        unknown = sorted(wanted - self._known.keys())[:_MOST_JOBS]
        if unknown and now >= self._due and self._command:
            failure = self._ask(self._command, unknown)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS) if failure else _PAUSE_SECONDS
            self._due = now + self._pause
            self._failure = Missing(JOB + "info", (), *failure) if failure else None
        return Collection(missing=(self._failure,) if self._failure else ())

    def _ask(self, command: str, job_ids: list[str]) -> tuple[MissingReason, str] | None:
        """Fill `_known`; why it cannot be."""
        line = [command, "--noheader", "--all", "--format", _FORMAT, "--jobs", ",".join(job_ids)]
        try:
            told = subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return MissingReason.TIMED_OUT, f"squeue: no answer within {_SECONDS:g} s"
        except OSError as error:
            return MissingReason.FAILED, f"{command}: {error.strerror}"
        if told.returncode and "Invalid job id" not in told.stderr:
            reason = told.stderr.strip().partition("\n")[0] or f"status {told.returncode}"
            return MissingReason.UNREACHABLE, f"squeue: {reason}"
        found = parse_squeue(told.stdout)
        self._known.update({job_id: found.get(job_id) for job_id in job_ids})
        return None


def parse_squeue(text: str) -> dict[str, SlurmNames]:
    """Jobs by number, of lines in our format; a job's name may hold bars."""
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|", 6)
        if len(parts) == 7 and parts[0].isdecimal():
            array = f"{parts[1]}_{parts[2]}" if parts[2].isdecimal() else ""
            found[parts[0]] = SlurmNames(parts[3], parts[4], parts[5], parts[6], array)
    return found
