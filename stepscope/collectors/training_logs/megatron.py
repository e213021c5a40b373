"""Iterations in logs of Megatron-LM and what is made from it: Megatron-DeepSpeed, Megatron Bridge, Primus, NeMo.

    iteration        2/     100 | consumed samples: 256 | elapsed time per iteration (ms): 5630.1 | lm loss: 2.0E+00 |
    iteration=       2/     100 | consumed_samples=256 | elapsed_time_per_iteration_ms=5630.1 | lm loss=2.0 |
    time (ms) | forward-compute: 306.62 | batch-generator: 2.97
    (min, max) time across ranks (ms):
        forward-backward ...............................: (210.40, 221.30)

Times are means of the iterations since the line before, without checkpoints and evaluation, for which Megatron stops
the clock. Timers follow their iteration; `batch-generator` is the wait for data. A line that was wrapped at a
terminal's width is joined. (Megatron-LM d98e8a6, megatron/training/training.py and core/timers.py; Primus fd1eeab.)
"""

from __future__ import annotations

import re

from stepscope.collectors.training_logs.rows import (
    Row,
    as_steps,
    by_attempt,
    is_plausible,
    num_before_first,
    number_at_start,
    usual_interval,
)
from stepscope.collectors.training_logs.text import last_stamp
from stepscope.core.documents.run_directory import LoggedSteps, TrainingLog
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice

_ITERATION = re.compile(r"\biteration[ =]\s*(\d{1,12})\s*/\s*\d{1,12}\s*(?:\||$)")
_MILLISECONDS = {
    "elapsed time per iteration ms": 1.0,
    "elapsed time per iteration s": 1e3,
    "train step timing in s": 1e3,
}
_FIGURES = {
    **dict.fromkeys(("lm loss", "lm-loss", "loss", "reduced train loss"), "loss"),
    **dict.fromkeys(("learning rate", "lr"), "learning_rate"),
    "grad norm": "grad_norm",
    **dict.fromkeys(
        ("throughput per gpu tflop/s/gpu", "compute per gpu tflop/s/gpu", "tflops", "[lm]tflops"), "tflops_per_gpu"
    ),
    **dict.fromkeys(
        ("tokens per gpu tokens/s/gpu", "tokens per gpu per second tgs", "tokens/s/gpu inst/harmonic mean"),
        "tokens_per_second_per_gpu",
    ),
}
_NEMO = "train_step_timing"
_MAX_CONTINUATIONS = 12
_LOG_INTERVAL = re.compile(r"\blog_interval \.{3,} ?(\d{1,6})\b")

_INLINE_TIMERS = re.compile(r"(?<!\] )time \(ms\) \|(.*)")
"""DeepSpeed prints its own, of micro-batches, with the rank before them."""
_TIMERS = re.compile(r"time(s)? across ranks \(ms\):")
_TIMER = re.compile(r"(?<![\w/-])([A-Za-z][\w/-]*) \.*: ?\(?([\d.]{1,20})(?:, ([\d.]{1,20})\))?")
_TIMER_NAME = re.compile(r"(?:^|\s)([a-z][\w/-]*):$")
_TIMER_OF_RANK = re.compile(r"\brank +(\d{1,7}): ([\d.]{1,20})")
_OTHER_TIMERS = re.compile(r"setup|checkpoint|evaluate|interval-time")
"""Of what is not in an iteration."""
_BATCH = ("batch-generator", "batch generator")
_SLOWEST_BATCH = re.compile(r"MxDRtt/Rnk: ?([\d.]{1,20})ms/(\d{1,7})\b")
"""Megatron's straggler detector: the longest get_batch of the interval, and its rank."""


class MegatronLog:
    """Collects the iterations of a log line by line."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._open = ""
        self._num_continuations = 0
        self._interval: int | None = None
        self._source = "Megatron-LM"
        self._timers = False
        self._timer_name = ""

    def take(self, line: str) -> None:
        """Read the next line."""
        if "iteration" in line and (match := _ITERATION.search(line)) is not None:
            self._timers = False
            self._open, self._num_continuations = line[match.start() :], 0
            self._rows.append(Row(int(match[1]), None, last_stamp(line[: match.start()])))
            self._read_fields()
        elif "(ms)" in line and self._rows and self._begins_timers(line):
            self._open = ""
        elif self._timers and self._read_timer(line):
            pass
        elif self._open and "|" in line and self._num_continuations < _MAX_CONTINUATIONS:
            self._num_continuations += 1
            self._open += line
            self._read_fields()
        elif "log_interval" in line and (match := _LOG_INTERVAL.search(line)) is not None:
            self._interval = int(match[1])
        elif "DeepSpeed" in line:
            self._source = "Megatron-DeepSpeed"
        elif "MxDRtt" in line and self._rows and (match := _SLOWEST_BATCH.search(line)) is not None:
            self._rows[-1].data_wait_ms, self._rows[-1].data_wait_rank = number_at_start(match[1]), int(match[2])
        else:
            self._timers = False

    def _read_fields(self) -> None:
        row = self._rows[-1]
        *parts, last = self._open.split("|")
        for part in (*parts[1:], *([last] if _NEMO in last else [])):  # what no bar ends may be cut off
            name, _, value = part.partition("=" if ":" not in part else ":")
            key = name.replace("_", " ").translate(_WITHOUT_BRACKETS).strip().lower()
            number = number_at_start(value)
            if number is None:
                continue
            if key in _MILLISECONDS and is_plausible(row.index, number * _MILLISECONDS[key]):
                row.ms = number * _MILLISECONDS[key]
                self._source = "NeMo" if key.startswith("train step") else self._source
            elif key in _FIGURES:
                row.figures[_FIGURES[key]] = number
            elif key == "samples per second":
                self._source = "Megatron-DeepSpeed"
            elif key.startswith(("hip mem usage", "rocm mem usage")):
                self._source = "Primus"
        if not last.strip() or _NEMO in self._open:
            self._open = ""

    def _begins_timers(self, line: str) -> bool:
        inline = _INLINE_TIMERS.search(line)
        if inline is not None:
            for part in inline[1].split("|"):
                name, _, value = part.partition(":")
                self._add_timer(name.strip(), number_at_start(value))
            return True
        self._timers = _TIMERS.search(line) is not None
        if self._timers:
            self._timer_name = ""
            self._read_timer(line.partition("(ms):")[2])
        return self._timers

    def _read_timer(self, line: str) -> bool:
        """Read one line of timers; False where it is another line."""
        of_rank = _TIMER_OF_RANK.search(line)
        if of_rank is not None and self._timer_name:
            self._add_timer(self._timer_name, number_at_start(of_rank[2]), int(of_rank[1]))
            return True
        timers = list(_TIMER.finditer(line))
        for name, first, last in (timer.groups() for timer in timers):
            self._add_timer(name, number_at_start(last or first))
        name = None if timers else _TIMER_NAME.search(line)
        self._timer_name = name[1] if name is not None else ""
        return bool(timers or name)

    def _add_timer(self, name: str, ms: float | None, rank: int | None = None) -> None:
        row = self._rows[-1]
        if not name or not ms or not is_plausible(0, ms) or _OTHER_TIMERS.search(name):
            return  # 0.00 is a timer that is off
        if name not in _BATCH:
            row.phases_ms[name] = max(ms, row.phases_ms.get(name, 0.0))
        elif ms >= (row.data_wait_ms or 0.0):
            row.data_wait_ms, row.data_wait_rank = ms, rank

    def finish(self) -> TrainingLog | None:
        """The iterations; None without any."""
        attempts = list(by_attempt(row for row in self._rows if row.ms is not None))
        interval = self._interval or usual_interval(attempts)
        steps: list[LoggedSteps] = []
        timed_ns = passed_ns = 0.0
        num_gaps = 0
        for attempt, rows in enumerate(attempts, 1):
            before: Row | None = None
            for row in rows:
                num_steps = row.index - before.index if before else num_before_first(row.index, interval)
                has_gap = before is not None and num_steps > interval and num_steps % interval == 0
                if has_gap:  # a line between is missing
                    num_steps = interval
                    num_gaps += 1
                follows_first = before is rows[0] and steps[-1].num_steps == 1
                ms = _mean_ms(row, before, num_steps) if follows_first else row.ms or 0.0
                steps.append(as_steps(row, num_steps, ms, attempt))
                if not has_gap and before is not None and before.stamp is not None and row.stamp is not None:
                    passed_ns += max(row.stamp.ns - before.stamp.ns, 0)
                    timed_ns += num_steps * ms * 1e6
                before = row
        gaps: list[Notice] = []
        if num_gaps:
            text = f"lines are missing before {counted(num_gaps, 'row')}: a row is of the usual {interval} steps"
            gaps.append(Notice("missing_lines", text))
        return TrainingLog(self._source, steps, [*gaps, *_outside(timed_ns, passed_ns)]) if steps else None


_WITHOUT_BRACKETS = str.maketrans("", "", "()")


def _mean_ms(row: Row, first: Row | None, num_steps: int) -> float:
    """Mean of the iterations since the first one.

    Megatron prints the first iteration of a start by itself, and counts it again in the next line's mean; other
    versions do not. The times of the lines tell which.
    """
    ms = row.ms or 0.0
    if first is None or first.ms is None or num_steps < 2 or first.stamp is None or row.stamp is None:
        return ms
    without_first = ((num_steps + 1) * ms - first.ms) / num_steps
    passed_ms = (row.stamp.ns - first.stamp.ns) / 1e6 / num_steps
    return without_first if without_first >= 0 and abs(without_first - passed_ms) < abs(ms - passed_ms) else ms


_MIN_OUTSIDE = 0.05
"""Share of the time between the lines; less is the resolution of their times."""


def _outside(timed_ns: float, passed_ns: float) -> list[Notice]:
    outside = passed_ns - timed_ns
    if passed_ns <= 0 or outside < _MIN_OUTSIDE * passed_ns or outside < 2e9:
        return []
    share = outside / passed_ns
    text = f"{outside / 1e9:,.0f} of {passed_ns / 1e9:,.0f} s between the lines ({share:.0%}) are outside of iterations"
    return [Notice("outside_of_steps", f"{text}: checkpoints, evaluation, what Megatron stops its clock for")]
