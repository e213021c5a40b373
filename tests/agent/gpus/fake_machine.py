"""GPUs and processes that read them, made of nothing but answers: what happens is decided here, and so is the time."""

from __future__ import annotations

import errno
import os
from typing import Any

from stepscope.agent.gpus.process import GpuProbe
from stepscope.agent.gpus.supervisor import ProbeSupervisor, ProbeTiming
from stepscope.core.metrics.readings import (
    GPU,
    Collection,
    Finding,
    Labels,
    Missing,
    MissingReason,
    Reading,
    labels_of,
)
from stepscope.core.metrics.stream import StreamWriter

TIMING = ProbeTiming(
    interval=1, deadline=5, start_deadline=30, look=60, first_retry=1, last_retry=64, healthy=600, slow=0.5, stale=60
)


class Machine:
    """GPUs, the processes that were started to read them, and the time."""

    def __init__(self, num_gpus: int, timing: ProbeTiming = TIMING) -> None:
        self.now = 0.0
        self.num_gpus = num_gpus
        self.hanging: set[int] = set()
        self.crashing: set[int] = set()
        self.lost: set[int] = set()
        self.slow: set[int] = set()
        self.unkillable: set[int] = set()
        self.xids: list[int] = []
        self.uncounted: set[int] = set()  # told of only by processes that knew them before
        self.seconds_an_answer = 0.0
        self.refusal: tuple[str, str] | None = None
        self.driver_hangs = False
        self.driver_loads = False  # new processes are answered when it has
        self.cannot_start = False
        self.started: list[FakeProbe] = []
        self.swept: list[tuple[float, int, int]] = []  # when, by which process, which GPU
        self.watch = ProbeSupervisor(self.start, timing)

    def start(self) -> GpuProbe:
        if self.cannot_start:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.started.append(FakeProbe(self, len(self.started)))
        return self.started[-1]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.watch.step(self.now, self.time_ns)
            self.watch.step(self.now, self.time_ns)  # answers to what was just asked
            self.now += 0.25

    @property
    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def reasons(self) -> dict[int, MissingReason | None]:
        return {target.index: target.reason for target in self.watch.targets.values()}

    def refused(self) -> MissingReason | None:
        return self.watch.refusal[0] if self.watch.refusal else None

    def sweeps_of(self, gpu: int, since: float) -> int:
        return sum(1 for when, _, index in self.swept if index == gpu and when >= since)


class FakeProbe:
    """A process: it answers at once, up to the GPU that hangs."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.number = number
        self.answers: list[dict[str, Any]] = []
        self.stuck_on: int | None = None
        self.held_up: dict[str, Any] | None = None
        self.has_ended = self.is_killed = self.is_finished = self.is_reaped = False
        self.keys: list[str] = []
        self.answered_at = machine.now

    def fileno(self) -> int:
        raise AssertionError("nobody waits here")

    def send(self, request: dict[str, Any]) -> bool:
        assert self.stuck_on is None, "two requests at once"
        machine = self.machine
        if machine.driver_loads and not self.keys:
            self.held_up = request
            return True
        if machine.driver_hangs:
            self.stuck_on = -1
            return True
        if machine.refusal:
            self.answers.append({"unusable": list(machine.refusal)})
            self.has_ended = True
            return True
        if request["do"] == "look":
            self.answers.append({"count": machine.num_gpus})
            wanted = [
                index
                for index in range(machine.num_gpus)
                if index not in request["skip"] and index in request.get("only", range(machine.num_gpus))
                if index not in machine.uncounted
            ]
        else:
            self.keys = request["keys"]
            wanted = [int(key.removeprefix("pci")) for key in request["keys"]]
        for index in wanted:
            others = [probe for probe in machine.started if probe is not self and probe.stuck_on == index]
            assert all(probe.is_gone() for probe in others), "two calls at once"
            if index in machine.hanging:
                self.stuck_on = index
                return True
            if index in machine.crashing:
                self.has_ended = True
                return True
            if request["do"] == "look":
                self.answers.append({"index": index, "target": {"key": f"pci{index}", "labels": labels(index)}})
            else:
                machine.swept.append((machine.now, self.number, index))
                self.answers.append(self.read(index))
        self.answers.append({"end": True})
        return True

    def read(self, index: int) -> dict[str, Any]:
        machine = self.machine
        is_lost = index in machine.lost or index >= machine.num_gpus
        is_lost |= index in machine.uncounted and self.number > 0
        time_ns = machine.time_ns
        if is_lost:
            part = Collection(missing=(Missing("", labels(index), MissingReason.GONE, "lost"),))
        else:
            xids = tuple(Finding("xid", "", (*labels(index), ("xid", str(xid))), time_ns) for xid in machine.xids)
            machine.xids = []
            part = Collection((Reading(GPU + "power_watts", 1.0, labels(index), time_ns),), (), xids)
        return {
            "key": f"pci{index}",
            "parts": {"often": StreamWriter().write(part)},
            "usable": not is_lost,
            "seconds": 0.9 if index in machine.slow else 0.01,
        }

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        if self.held_up is not None and not self.machine.driver_loads:
            request, self.held_up = self.held_up, None
            self.send(request)
        if not self.machine.seconds_an_answer:
            answers, self.answers = self.answers, []
        elif self.answers and self.machine.now >= self.answered_at + self.machine.seconds_an_answer:
            self.answered_at = self.machine.now
            answers, self.answers = self.answers[:1], self.answers[1:]
        else:
            answers = []
        return answers, self.has_ended and not self.answers

    def kill(self) -> None:
        self.is_killed = True

    def is_gone(self) -> bool:
        if self.stuck_on is None or self.stuck_on not in self.machine.unkillable:
            self.is_reaped |= self.has_ended or self.is_killed or (self.is_finished and self.stuck_on is None)
        return self.is_reaped

    def finish(self) -> None:
        self.is_finished = True


def labels(index: int) -> Labels:
    return labels_of(gpu=index, uuid=f"GPU-{index}")
