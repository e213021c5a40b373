"""Steps in torchtitan's console output, also in Primus' form of it.

    [rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319
        memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%          (one line)
    [20260406 22:33:50][rank-0/8][INFO     ] step: 14  loss: ...

A line has no step time: it follows from the times of two lines, over the steps between them; the first one begins with
"Training starts at step". Where lines have whole seconds only, the throughput (`tps`, tokens a second and device, over
the same interval) has the resolution, and the times of all lines together its scale. Checkpoints and validation between
two lines are phases. (torchtitan b5bcd76, torchtitan/components/metrics.py; Primus fd1eeab.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.collectors.training_logs.rows import Row, as_steps, by_attempt, is_plausible, number_at_start
from stepscope.collectors.training_logs.text import Stamp, last_stamp
from stepscope.core.documents.steps import LoggedSteps, TrainingLog
from stepscope.core.vocabulary import Notice

_STEP = re.compile(r"(?<!validate )\bstep: *(\d{1,12}) {1,4}(?=loss: )")
_FIELD = re.compile(r"\b(loss|grad_norm|tps|wps|tflops|mfu|iter|data|memory): *([-+.\d,eE]+)")
_FIGURES = {"loss": "loss", "grad_norm": "grad_norm", "tflops": "tflops_per_gpu", "mfu": "mfu_percent"}
_SECONDS = {"iter", "data"}
"""Of the first versions (early 2024), which gave them."""
_STARTS = re.compile(r"Training starts at step (\d{1,12})\b")
_VALIDATED = re.compile(r"\bvalidate step: *(\d{1,12})\b")
_SAVED = re.compile(
    r"(?:Finished (?:saving|staging) the checkpoint|Last step checkpoint completed).{0,60}?in +([\d.]{1,12})"
)
_MIN_ROWS_TO_SCALE = 3


@dataclass(slots=True)
class _Titan(Row):
    """A step line with its throughput, in tokens a second and device."""

    throughput: float | None = None


class TorchtitanLog:
    """Collects the steps of a log line by line."""

    def __init__(self) -> None:
        self._rows: list[_Titan] = []
        self._starts: list[tuple[int, Stamp]] = []
        self._validated: dict[int, Stamp] = {}
        self._saved_ms: dict[int, float] = {}
        self._is_primus = False

    def take(self, line: str) -> None:
        """Read the next line."""
        if "step: " in line:
            validated = _VALIDATED.search(line)
            if validated is not None:
                stamp = last_stamp(line[: validated.start()])
                if stamp is not None:
                    self._validated.setdefault(int(validated[1]), stamp)
                return
            match = _STEP.search(line)
            if match is not None:
                self._read_step(int(match[1]), line[match.end() :], line[: match.start()])
        elif "Training starts" in line:
            match = _STARTS.search(line)
            stamp = last_stamp(line[: match.start()]) if match is not None else None
            if match is not None and stamp is not None:
                self._starts.append((int(match[1]), stamp))
        elif "checkpoint" in line and (match := _SAVED.search(line)) is not None:
            seconds = number_at_start(match[1])
            if seconds is not None and self._rows:
                self._saved_ms.setdefault(self._rows[-1].index, seconds * 1e3)

    def _read_step(self, index: int, fields: str, prefix: str) -> None:
        values = {name: number_at_start(text) for name, text in _FIELD.findall(fields)}
        numbers = {name: value for name, value in values.items() if value is not None}
        throughput = numbers.get("tps", numbers.get("wps"))
        if throughput is None and "iter" not in numbers:
            return  # another framework's, or cut off
        row = _Titan(index, None, last_stamp(prefix), throughput=throughput)
        row.figures = {_FIGURES[name]: value for name, value in numbers.items() if name in _FIGURES}
        if throughput is not None:
            row.figures["tokens_per_second_per_gpu"] = throughput
        if "iter" in numbers:
            row.ms = numbers["iter"] * 1e3
            row.data_wait_ms = numbers["data"] * 1e3 if "data" in numbers else None
        self._rows.append(row)
        self._is_primus |= "[rank-" in prefix

    def finish(self) -> TrainingLog | None:
        """The steps; None without any step line."""
        if not self._rows:
            return None
        starts_ns = sorted(stamp.ns for _, stamp in self._starts)
        steps = [
            step
            for attempt, rows in enumerate(by_attempt(self._in_order(), starts_ns), 1)
            for step in self._steps(rows, attempt)
        ]
        source = "torchtitan by Primus" if self._is_primus else "torchtitan"
        return TrainingLog(source, steps, [] if steps else [Notice("no_times", _NO_TIMES)])

    def _in_order(self) -> list[_Titan]:
        """Rows by time: the output of several ranks may come late."""
        if any(row.stamp is None for row in self._rows):
            return self._rows
        return sorted(self._rows, key=lambda row: row.stamp.ns if row.stamp is not None else 0)

    def _steps(self, rows: Sequence[_Titan], attempt: int) -> list[LoggedSteps]:
        before = self._start_of(rows[0])
        counted = []
        for row in rows:
            if before is not None:
                counted.append((row, row.index - before.index, before))
            elif row.ms is not None:
                counted.append((row, 1, row))
            before = row
        scale = _tokens_a_step(counted)
        steps = []
        for row, num_steps, earlier in counted:
            ms = row.ms if row.ms is not None else _interval_ms(row, num_steps, earlier, scale)
            if ms is None or num_steps < 1 or not is_plausible(row.index, ms):
                continue
            row.phases_ms = self._phases(earlier, num_steps)
            steps.append(as_steps(row, num_steps, ms, attempt))
        return steps

    def _start_of(self, first: _Titan) -> Row | None:
        """The step before the first one, at the time of the last start that came before its line."""
        for step, stamp in reversed(self._starts):
            if first.stamp is not None and stamp.ns <= first.stamp.ns and step <= first.index:
                return Row(step - 1, None, stamp)
        return None

    def _phases(self, earlier: Row, num_steps: int) -> dict[str, float]:
        """Checkpoint and validation after a line, in ms of each of the steps that follow."""
        saved_ms = self._saved_ms.get(earlier.index, 0.0)
        phases = {"checkpoint": saved_ms} if saved_ms else {}
        validated = self._validated.get(earlier.index)
        if validated is not None and earlier.stamp is not None:
            phases["evaluation"] = max((validated.ns - earlier.stamp.ns) / 1e6 - saved_ms, 0.0)
        return {name: ms / num_steps for name, ms in phases.items() if ms}


_NO_TIMES = (
    "torchtitan's lines have no step times, and these have neither their own times nor a line before them:"
    " keep the whole lines, beginning with [titan] and the time"
)

_Counted = tuple[_Titan, int, Row]


def _tokens_a_step(counted: Sequence[_Counted]) -> float | None:
    """Throughput times the seconds of a step, on average; None where the lines' own times are fine enough."""
    timed = [
        (row, num_steps, row.stamp.ns - earlier.stamp.ns)
        for row, num_steps, earlier in counted
        if row.throughput and row.stamp is not None and earlier.stamp is not None and row.stamp.ns >= earlier.stamp.ns
    ]
    is_fine = all(row.stamp is not None and row.stamp.is_fine for row, _, _ in timed)
    if is_fine or len(timed) < _MIN_ROWS_TO_SCALE:
        return None
    steps_by_throughput = sum(num_steps / row.throughput for row, num_steps, _ in timed if row.throughput)
    return sum(passed_ns for _, _, passed_ns in timed) / 1e9 / steps_by_throughput


def _interval_ms(row: _Titan, num_steps: int, earlier: Row, scale: float | None) -> float | None:
    """Mean duration of a step since the line before."""
    if scale is not None and row.throughput:
        return scale / row.throughput * 1e3
    if num_steps < 1 or row.stamp is None or earlier.stamp is None or row.stamp.ns < earlier.stamp.ns:
        return None
    return (row.stamp.ns - earlier.stamp.ns) / 1e6 / num_steps
