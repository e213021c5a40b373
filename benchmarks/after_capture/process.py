"""Process that trains a model by commands from stdin, a JSON line an answer; and its parent's end of the pipes.

| command | does | answers |
| --- | --- | --- |
| block | trains 50 steps | ms a step, and ms of CPU time of all threads |
| pause | trains as `capture` does, profiled, without a capture | nothing |
| capture | trains under `stepscope.profile`, which takes its light and its full capture | traces with kernels |
| attached | the same, after which CUPTI stays attached, torch's default | traces with kernels |
| endure N | takes N captures, light and full by turns | traces with kernels, and what they cost |
| request N | takes N captures that the rule of slow steps requests | traces with kernels |
| user | the user's own torch.profiler records three steps | traces with kernels |
| aside | the user's torch.profiler begins while stepscope captures | traces with kernels |
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.after_capture.models import MODELS, Place, Step

BLOCK_STEPS = 50
_WARMUP_STEPS = 60
_CAPTURE_STEPS = 30
"""The default schedule of a GPU ends with step 26."""
_PERIOD_STEPS, _LIGHT_STEPS, _ACTIVE_STEPS = 40, 5, 3
_NEVER = 10**9
_MOST_WAITED_STEPS = 2_000
_KERNEL = {"cuda": b'"cat": "kernel"', "cpu": b'"cat": "cpu_op"'}
_BASE_STEPS = 8


class _Trainer:
    """Trains one model by commands."""

    def __init__(self, step: Step, place: Place) -> None:
        self._step, self._place = step, place

    def synchronize(self) -> None:
        import torch

        if self._place.device == "cuda":
            torch.cuda.synchronize()

    def train(self, num_steps: int, after_each: Callable[[], object] = lambda: None) -> None:
        for _ in range(num_steps):
            self._step()
            after_each()

    def block(self) -> tuple[float, float]:
        self.synchronize()
        began, began_cpu = time.perf_counter(), time.process_time()
        self.train(BLOCK_STEPS)
        cpu = time.process_time() - began_cpu  # the wait below spins
        self.synchronize()
        return (time.perf_counter() - began) / BLOCK_STEPS * 1e3, cpu / BLOCK_STEPS * 1e3

    def pause(self) -> None:
        import stepscope

        logging.disable(logging.WARNING)  # that nothing is captured
        schedule = stepscope.once(wait=_NEVER)
        with (
            tempfile.TemporaryDirectory() as folder,
            stepscope.profile("run", folder, schedule=schedule) as run,
        ):
            self.train(_CAPTURE_STEPS, run.step)
        logging.disable(logging.NOTSET)

    def capture(self) -> int:
        import stepscope

        with tempfile.TemporaryDirectory() as folder:
            with stepscope.profile("run", folder) as run:
                self.train(_CAPTURE_STEPS, run.step)
            return self._num_traces(Path(folder))

    def attached(self) -> int:
        os.environ["TEARDOWN_CUPTI"] = "0"
        try:
            return self.capture()
        finally:
            del os.environ["TEARDOWN_CUPTI"]

    def endure(self, num_captures: int) -> dict[str, Any]:
        import stepscope
        from stepscope.training.captures.schedule import Schedule

        periods = -(-num_captures // 2)
        schedule = Schedule(_PERIOD_STEPS, 1, _ACTIVE_STEPS, _PERIOD_STEPS, periods, _LIGHT_STEPS)
        with tempfile.TemporaryDirectory() as folder:
            with stepscope.profile("run", folder, schedule=schedule) as run:
                self.train(_PERIOD_STEPS * (periods + 1), run.step)
            (steps,) = Path(folder).rglob("steps/rank0.jsonl")
            lines = [json.loads(line) for line in steps.read_text().splitlines()]
            return {"traces": self._num_traces(Path(folder)), "costs": costs(lines)}

    def request(self, num_captures: int) -> int:
        import stepscope

        rule = stepscope.slow_step(factor=1.5, times=1, cooldown_seconds=0.0, most=num_captures)
        with tempfile.TemporaryDirectory() as folder:
            schedule = stepscope.once(wait=_NEVER)
            with stepscope.profile("run", folder, schedule=schedule, capture_when=rule) as run:
                for done in range(num_captures):
                    self.train(20, run.step)
                    time.sleep(0.3)  # a slow step
                    for _ in range(_MOST_WAITED_STEPS // 10):
                        self.train(10, run.step)
                        if len(list(Path(folder).rglob("*.json.gz"))) > done:
                            break
            return self._num_traces(Path(folder))

    def user(self) -> int:
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] if self._place.device == "cuda" else []
        with tempfile.TemporaryDirectory() as folder:
            with torch.profiler.profile(activities=activities) as other:
                self.train(3, other.step)
            other.export_chrome_trace(f"{folder}/theirs.json.gz")
            return self._num_traces(Path(folder))

    def aside(self) -> list[int]:
        import stepscope

        with tempfile.TemporaryDirectory() as folder:
            with stepscope.profile("run", folder, schedule=stepscope.once(wait=3, active=6)) as run:
                self.train(7, run.step)  # steps 4 to 9 are captured
                theirs = self.user()
                self.train(20, run.step)
            return [theirs, self._num_traces(Path(folder))]

    def _num_traces(self, folder: Path) -> int:
        """Traces below a folder that hold kernels."""
        self.synchronize()
        text = _KERNEL[self._place.device]
        return sum(text in gzip.decompress(path.read_bytes()) for path in folder.rglob("*.json.gz"))


def costs(steps: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What captures of a kind cost: medians over the captures, of step lines.

    `during` is the recorded steps' time over that of the unprofiled steps just before, without the first, in which the
    profiler begins; `while_written` that of the steps after it, in which its trace is written, and `slowest` the
    slowest of them; `prepare_ms` and `export_ms` stop training.
    """
    of: dict[str, list[dict[str, float]]] = {"light": [], "full": []}
    states = [step["state"] for step in steps]
    for first in (at for at in range(1, len(steps)) if states[at] == "active" != states[at - 1]):
        stop = next((at for at in range(first, len(steps)) if states[at] != "active"), len(steps))
        after = next((at for at in range(stop, len(steps)) if states[at] != "wait"), len(steps))
        base = [_step_ms(step) for step in steps[:first] if step["state"] == "wait"][-_BASE_STEPS:]
        written = [_step_ms(step) for step in steps[stop : min(after, stop + _BASE_STEPS)]]
        if len(base) < _BASE_STEPS or not written or stop - first < _ACTIVE_STEPS:
            continue
        usual = statistics.median(base)
        of["light" if stop - first == _LIGHT_STEPS else "full"].append(
            {
                "during": statistics.median(_step_ms(step) for step in steps[first + 1 : stop]) / usual,
                "while_written": statistics.mean(written) / usual,
                "slowest": max(written) / usual,
                "prepare_ms": sum(step.get("prepare_ns", 0) for step in steps[first - 2 : stop]) / 1e6,
                "export_ms": steps[stop - 1].get("export_ns", 0) / 1e6,
            }
        )
    return {
        kind: {name: round(statistics.median(one[name] for one in ones), 4) for name in ones[0]} | {"num": len(ones)}
        for kind, ones in of.items()
        if ones
    }


def _step_ms(step: dict[str, Any]) -> float:
    own_ns = step.get("device_ns") or step["end_ns"] - step["start_ns"]
    return float(own_ns) / 1e6


@contextmanager
def _answers() -> Iterator[Callable[[Any], None]]:
    """Writes answers to what was stdout, which prints go around."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def answer(what: Any) -> None:
            out.write(json.dumps(what) + "\n")
            out.flush()

        yield answer


def serve(model: str, place: Place) -> None:
    """Train in this process by commands, after the first answer, which says that the model is built."""
    with _answers() as answer:
        trainer = _Trainer(MODELS[model].make(place), place)
        trainer.train(place.size(_WARMUP_STEPS, 2))
        trainer.synchronize()
        answer("ready")
        for line in sys.stdin:
            name, *numbers = line.split()
            answer(getattr(trainer, name)(*map(int, numbers)))
    sys.stdout.flush()


class TrainingProcess:
    """A process that trains a model by commands.

    Raises:
        RuntimeError: from `ask`, when it has exited or does not answer in time.
    """

    def __init__(self, model: str, place: Place) -> None:
        command = [sys.executable, "-m", "benchmarks.after_capture", model, "--serve", "--device", place.device]
        command += ["--tiny"] if place.is_tiny else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, command: str, seconds: float = 60.0) -> Any:
        """Send a command, or none, and wait for its answer."""
        assert self._process.stdin is not None
        try:
            if command:
                self._process.stdin.write(command + "\n")
                self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise RuntimeError(f"{command or 'start'}: no answer in {seconds:.0f} s") from None
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{command or 'start'}: the process exited with status {self._process.wait()}")
        return json.loads(line)

    def end(self) -> int:
        """End it; its exit status, negative by a signal."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            return self._process.wait(timeout=20)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            return self._process.wait()
