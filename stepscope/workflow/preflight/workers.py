"""Request of a preflight, and its worker processes, which may hang or die: all are asked at once, with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any

from stepscope.collectors.jobs.devices import parse_device_list
from stepscope.core.documents.machine_checks import CHECKS, CheckGroup
from stepscope.core.process import module_command
from stepscope.core.text.numbers import unknown_name

_GRACE_SECONDS = 3.0
"""Time for processes to end: by themselves, then after SIGTERM, then after SIGKILL."""
MAX_ANSWER_BYTES = 32 * 1024**2


class FailureKind(StrEnum):
    """How a preflight's worker failed to answer."""

    HUNG = "hung"
    DIED = "died"
    ERROR = "error"  # it reported an error, and ended


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A request that a preflight's worker did not answer."""

    kind: FailureKind
    detail: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A request that a preflight's device does not support, and why."""

    detail: str


Reply = dict[str, Any] | Unsupported | WorkerFailure


class Worker:
    """One worker process of a preflight: answers requests, a line of JSON each way. A context manager."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=dict(environment),
            start_new_session=True,  # ^C is for this process, which ends the others
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._partial = b""
        self.failure: WorkerFailure | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """File descriptor that is readable when there is an answer, or the process has ended."""
        return self._output.fileno()

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request; a process that has ended is noticed when its answer is read."""
        with contextlib.suppress(OSError):
            self._input.write(json.dumps(request).encode() + b"\n")

    def receive(self) -> Reply | None:
        """The answer; None while it is incomplete."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output.fileno(), 1 << 16):
                self._partial += data
                if len(self._partial) > MAX_ANSWER_BYTES:
                    return self.fail(FailureKind.DIED, "its answer is not valid")
                if data.endswith(b"\n"):
                    break
            else:
                return self.fail(FailureKind.DIED, self._last_words())
        if not self._partial.endswith(b"\n"):
            return None
        line, self._partial = self._partial, b""
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            return self.fail(FailureKind.DIED, "its answer is not valid")
        if "unsupported" in answer:
            return Unsupported(str(answer["unsupported"]))
        return self.fail(FailureKind.ERROR, str(answer["error"])) if "error" in answer else answer

    def fail(self, kind: FailureKind, detail: str) -> WorkerFailure:
        """Record that it takes no more requests, and why."""
        self.failure = WorkerFailure(kind, detail)
        return self.failure

    def close(self) -> None:
        """End the process. One that hangs in the kernel cannot be ended and is left."""
        close_workers([self])

    def _has_ended(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _last_words(self) -> str:
        """Why it ended: the signal or exit code, and the last line on its stderr."""
        self._has_ended(1.0)
        code = self._process.poll()
        how = "its process ended"
        if code is not None:
            how += f" with {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 4096))
        lines = self._errors.read().decode(errors="replace").split("\n")
        printed = [line.strip() for line in lines if line.strip()]
        return f"{how}: {printed[-1][:300]}" if printed else how


def close_workers(workers: Sequence[Worker]) -> None:
    """End a preflight's workers together: each way of ending is waited for once, not once per process."""
    for worker in workers:
        with contextlib.suppress(OSError):
            worker._input.close()
        if worker.failure is not None:
            worker._process.terminate()
    for tell in (None, signal.SIGTERM, signal.SIGKILL):
        left = [worker for worker in workers if worker._process.poll() is None]
        for worker in left:
            if tell is not None:
                worker._process.send_signal(tell)
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in left:
            worker._has_ended(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        worker._output.close()
        worker._errors.close()


def ask_workers(requests: Mapping[Worker, Mapping[str, Any]], seconds: float) -> dict[Worker, Reply]:
    """Send each preflight worker its request, and wait for all; one that failed before gives its failure again.

    Args:
        seconds: deadline; workers without an answer count as hung.
    """
    replies: dict[Worker, Reply] = {}
    with selectors.DefaultSelector() as selector:
        for worker, request in requests.items():
            if worker.failure is not None:
                replies[worker] = worker.failure
                continue
            worker.send(request)
            selector.register(worker.fileno(), selectors.EVENT_READ, worker)
        deadline = time.monotonic() + seconds
        while selector.get_map():
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                reply = key.data.receive()
                if reply is not None:
                    replies[key.data] = reply
                    selector.unregister(key.fd)
            if time.monotonic() >= deadline:
                break
        for key in list(selector.get_map().values()):
            replies[key.data] = key.data.fail(FailureKind.HUNG, f"no answer within {seconds:g} s")
    return replies


def ask_worker(worker: Worker, request: Mapping[str, Any], seconds: float) -> Reply:
    """Send one preflight worker a request, and wait for its answer."""
    return ask_workers({worker: request}, seconds)[worker]


MAX_GPUS = 1024
"""Of one node: the limit of a range."""
_DRIVER_SECONDS = (5.0, 15.0)
"""At least and at most. A driver without persistence mode takes up to 3 s to wake a GPU."""

_WORKER = module_command("stepscope.workflow.preflight.worker_process")


def driver_seconds_of(seconds: float) -> float:
    """Preflight's deadline of NVML for all readings of a GPU, from that of a check."""
    least, most = _DRIVER_SECONDS
    return min(most, max(least, seconds))


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """Checks and GPUs of a preflight.

    Attributes:
        device_type: "cuda", or "cpu" to try the code without GPUs.
        quick: the short form.
        groups: of checks.
        gpus: indices, beginnings of UUIDs, or UUIDs of MIG instances; None for all.
        slurm_gpus: minor numbers or UUIDs as Slurm names them, in place of `gpus`; None without Slurm.
        expected_gpus: whole GPUs that the node must have; 0 for no such check.
        seconds: deadline of one check on one GPU.
        start_seconds: deadline of importing torch and opening a GPU.
        driver_seconds: deadline of NVML for all readings of a GPU, see `driver_seconds_of`.
    """

    device_type: str = "cuda"
    quick: bool = False
    groups: frozenset[CheckGroup] = frozenset(CheckGroup)
    gpus: tuple[str, ...] | None = None
    slurm_gpus: tuple[str, ...] | None = None
    expected_gpus: int = 0
    seconds: float = 60.0
    start_seconds: float = 180.0
    driver_seconds: float = _DRIVER_SECONDS[1]

    @property
    def runs(self) -> bool:
        """Whether anything runs on the GPUs; else only NVML is asked."""
        return self.groups != {CheckGroup.STATE}


@dataclass(frozen=True, slots=True)
class WorkerPrograms:
    """Commands of a preflight's worker processes.

    Attributes:
        device: measures; the kind of device is appended.
        state: asks NVML.
    """

    device: tuple[str, ...] = _WORKER
    state: tuple[str, ...] = (*_WORKER, "driver")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def parse_gpu_names(text: str) -> tuple[str, ...]:
    """Parse preflight's `--gpus`, a list such as "0,2-4,GPU-1b2c3d4e"."""
    names: list[str] = []
    for name in (word.strip() for word in text.split(",")):
        first, dash, last = name.partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(last) < MAX_GPUS:
            names += map(str, range(int(first), int(last) + 1))
        elif name:
            names.append(name)
    return tuple(dict.fromkeys(names))


def parse_slurm_gpus(text: str) -> tuple[str, ...]:
    """Parse preflight's `--slurm-gpus`: SLURM_JOB_GPUS such as "0,2-4,GPU-1b2c3d4e"; none in "NoDevFiles"."""
    return tuple(dict.fromkeys(parse_device_list(text)))


def parse_check_groups(text: str) -> frozenset[CheckGroup]:
    """Parse preflight's `--checks`, a list of groups or checks such as "memory,matmul".

    Raises:
        UsageError: there is no group or check of a name.
    """
    groups = set()
    for name in (word.strip().replace("-", "_") for word in text.split(",")):
        if name in CHECKS:
            groups.add(CHECKS[name])
        elif name in CheckGroup.__members__.values():
            groups.add(CheckGroup(name))
        else:
            raise unknown_name("check", name, CheckGroup, where="--checks")
    return frozenset(groups)
