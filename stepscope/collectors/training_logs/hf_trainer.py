"""Steps in the console output of the Hugging Face Trainer, and of what is made from it (TRL, Axolotl, LLaMA-Factory).

      8%|▊         | 5/60 [00:02<00:24,  2.25it/s]
    {'loss': 6.254, 'grad_norm': 1.799, 'learning_rate': 4.667e-05, 'epoch': 0.01}
    {'eval_loss': 6.225, 'eval_runtime': 9.25, 'eval_samples_per_second': 0.324, 'epoch': 0.04}
    {'train_runtime': 27.74, 'train_samples_per_second': 4.326, 'train_steps_per_second': 2.163, 'train_loss': 6.229}

The progress bar has the steps and the seconds since the start, whole ones: a row is of as many steps as take ten
seconds. It is the bar that the lines with a loss, or the last one, follow: evaluation and data have bars of their own.
Without a bar, the last line has the mean of the whole training. (transformers 4.4 to 5.17, trainer_callback.py; tqdm.)
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from stepscope.collectors.training_logs.rows import is_plausible, number_at_start
from stepscope.core.documents.run_directory import LoggedSteps, TrainingLog
from stepscope.core.vocabulary import Notice

_BAR = re.compile(r"(?<![\w%])(\d{1,3})%\|[^|]{0,200}\| (\d{1,12})/(\d{1,12}) \[(?:(\d{1,6}):)?(\d{1,2}):(\d\d)<")
_BAR_MARK = "%|"
_TITLE_END = re.compile(r"[A-Za-z]: *$")
_PAIR = re.compile(r"'([a-z]\w{0,60})': '?(-?(?:\d[\d.]{0,30}(?:e[-+]?\d{1,3})?|nan|inf))'?(?=[,}])")
_TOTAL = re.compile(r"Total optimization steps = ([\d,]{1,16})")
_FIGURES = ("loss", "grad_norm", "learning_rate")
_MIN_SECONDS = 10
"""Of a row: the bar's seconds are whole, so that a row is known within a tenth."""
_MAX_SKIP = 5.0
"""Rate of the first update, over the rate afterwards, from which it is a jump to the step of a checkpoint."""
_MAX_KINDS = 64
"""Of bars, by their totals; a training has two or three."""
_SURE = 0.5
"""Steps; the last line's rate is rounded, and may stand for several numbers of steps."""


@dataclass(slots=True)
class _Bar:
    """One progress bar: its updates (step, seconds), and evaluation and figures by the step that they follow."""

    total: int
    updates: list[tuple[int, int]] = field(default_factory=list)
    evaluation_seconds: dict[int, float] = field(default_factory=dict)
    figures: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The latest step."""
        return self.updates[-1][0] if self.updates else 0

    def is_left(self, step: int, seconds: int) -> bool:
        """Whether a state is another bar's: it begins again, or goes back in steps and time."""
        return step < self.step and (step == 0 or seconds < self.updates[-1][1] - 1)


class HfTrainerLog:
    """Collects the progress of a training line by line."""

    def __init__(self) -> None:
        self._bars: list[_Bar] = []
        self._latest: dict[int, _Bar] = {}
        self._current: _Bar | None = None
        self._votes: Counter[int] = Counter()
        self._totals: set[int] = set()
        self._summary: dict[str, float] = {}
        self._evaluation_seconds = 0.0
        self._has_losses = False

    def take(self, line: str) -> None:
        """Read the next line."""
        if _BAR_MARK in line:
            for bar in _BAR.finditer(line):
                self._update(bar, line[: bar.start()])
        if "{'" in line:
            self._read_values({name: value for name, value in map(_pair, _PAIR.findall(line)) if value is not None})
        elif "Total optimization steps" in line:
            self._totals |= {int(total.replace(",", "") or 0) for total in _TOTAL.findall(line)}

    def _update(self, match: re.Match[str], before: str) -> None:
        step, total = int(match[2]), int(match[3])
        if step > total or not total or _has_title(before.rpartition("]")[2] if _BAR_MARK in before else before):
            return
        seconds = 3600 * int(match[4] or 0) + 60 * int(match[5]) + int(match[6])
        bar = self._latest.get(total)
        if bar is None or bar.is_left(step, seconds):
            bar = self._latest[total] = _Bar(total)
            self._bars.append(bar)
        if step > bar.step:
            bar.updates.append((step, seconds))
        if bar.updates:
            self._current = bar

    def _read_values(self, values: dict[str, float]) -> None:
        if "train_runtime" in values:
            self._summary = values
        elif "eval_runtime" in values:
            self._evaluation_seconds += values["eval_runtime"]
            for bar in islice(self._latest.values(), _MAX_KINDS):
                spent = bar.evaluation_seconds.get(bar.step, 0.0)
                bar.evaluation_seconds[bar.step] = spent + values["eval_runtime"]
        elif "loss" in values:
            self._has_losses = True
            if self._current is None:
                return
            self._votes[self._current.total] += 1
            figures = {name: values[name] for name in _FIGURES if name in values}
            self._current.figures[self._current.step] = figures

    def _training_total(self) -> int:
        """Steps of the training; 0 where nothing tells its bar from others.

        By the Trainer's own line, else the bar before most of the losses, else that of as many steps as the last line
        has.
        """
        if self._totals:
            return max(self._totals)
        if self._votes:
            return self._votes.most_common(1)[0][0]
        seconds, rate = self._summary.get("train_runtime", 0.0), self._summary.get("train_steps_per_second", 0.0)
        tolerance = seconds * _last_place(rate) / 2 + _SURE
        fitting = [total for total in self._latest if rate > 0 and abs(total - seconds * rate) <= tolerance]
        return fitting[0] if len(fitting) == 1 else 0

    def finish(self) -> TrainingLog | None:
        """The steps, or why progress bars are not taken for a training's; None without any."""
        total = self._training_total()
        bars = _distinct([bar for bar in self._bars if bar.total == total])
        steps = [step for attempt, bar in enumerate(bars, 1) for step in _rows(bar, attempt)]
        if len(steps) > 1 or (steps and "train_runtime" not in self._summary):
            text = "the progress bar has whole seconds: a row is the mean of the steps of at least ten seconds"
            return TrainingLog(_SOURCE, steps, [Notice("coarse_times", text)])
        if "train_runtime" not in self._summary:
            if self._bars:
                return TrainingLog(_SOURCE, [], [Notice("unidentified_bars", _UNIDENTIFIED)])
            return TrainingLog(_SOURCE, [], [Notice("no_times", _NO_TIMES)]) if self._has_losses else None
        return self._whole(total)

    def _whole(self, num_steps: int) -> TrainingLog | None:
        """One row of the whole training, from the last line; `num_steps` 0: not known."""
        seconds, rate = self._summary.get("train_runtime", 0.0), self._summary.get("train_steps_per_second", 0.0)
        if seconds <= 0 or (rate <= 0 and not num_steps):
            return None
        text = "the log has the mean of all steps alone, without the progress bar or with one of a few seconds"
        notices = [Notice("coarse_times", text)]
        ms = 1e3 / rate if rate > 0 else 0.0
        if num_steps or seconds * _last_place(rate) / 2 <= _SURE:
            num_steps = num_steps or max(round(seconds * rate), 1)
            ms = seconds * 1e3 / num_steps
        else:
            num_steps = max(round(seconds * rate), 1)
            notices.append(Notice("coarse_times", f"the number of steps, {num_steps:,}, follows from a rounded rate"))
        if not is_plausible(num_steps, ms):
            return None
        phases = {"evaluation": self._evaluation_seconds * 1e3 / num_steps} if self._evaluation_seconds else {}
        figures = {"loss": self._summary["train_loss"]} if "train_loss" in self._summary else {}
        return TrainingLog(_SOURCE, [LoggedSteps(num_steps, num_steps, ms, phases_ms=phases, figures=figures)], notices)


_SOURCE = "Hugging Face Trainer"
_UNIDENTIFIED = (
    "has progress bars, but no line with a loss or 'train_runtime', which tell the training's bar from others;"
    " if they went to another file, give both in one"
)
_NO_TIMES = (
    "has lines of the Hugging Face Trainer with losses, and these have no times: the progress bar has,"
    " or the last line (train_runtime)"
)
_SAME_SECONDS, _SAME_SHARE = 2, 0.02
"""Difference of two bars at a step, from which they are not of the same training."""


_MAX_COMPARED = 64


def _distinct(bars: list[_Bar]) -> list[_Bar]:
    """Bars without those that other processes of the same training print."""
    distinct: list[_Bar] = []
    for bar in (bar for bar in bars if bar.updates):
        if not any(_are_alike(bar, other) for other in distinct[-_MAX_COMPARED:]):
            distinct.append(bar)
    return distinct


def _are_alike(one: _Bar, other: _Bar) -> bool:
    seconds = dict(other.updates)
    pairs = [(spent, seconds[step]) for step, spent in one.updates if step in seconds]
    return bool(pairs) and all(abs(a - b) <= max(_SAME_SECONDS, _SAME_SHARE * a) for a, b in pairs)


def _has_title(before: str) -> bool:
    """Whether a bar has a title ("Map (num_proc=8):"), as the trainer's has none; launchers' prefixes are no words."""
    words = before.split()
    return any(word.isalpha() for word in words) or (
        bool(words) and words[-1][-2:-1].isalpha() and words[-1][-1] == ":"
    )


def _pair(entry: tuple[str, str]) -> tuple[str, float | None]:
    name, text = entry
    return name, number_at_start(text)


def _last_place(value: float) -> float:
    """Size of the last of three decimals, or of four significant digits where these are coarser."""
    return 1e-3 if value < 10 else 10.0 ** (len(f"{value:.0f}") - 4)


def _rows(bar: _Bar, attempt: int) -> list[LoggedSteps]:
    """Rows of at least ten seconds, of one step at least; the last may be shorter."""
    updates = _without_skip(bar.updates)
    evaluated, logged = sorted(bar.evaluation_seconds), sorted(bar.figures)
    rows: list[LoggedSteps] = []
    step, seconds = updates[0]
    for later, later_seconds in updates[1:]:
        is_last = later == updates[-1][0]
        if later_seconds - seconds < _MIN_SECONDS and not (is_last and later_seconds > seconds):
            continue
        num_steps = later - step
        within = evaluated[bisect_left(evaluated, step) : bisect_left(evaluated, later)]
        spent = sum(bar.evaluation_seconds[at] for at in within)
        figures = logged[bisect_right(logged, step) : bisect_right(logged, later)]
        rows.append(
            LoggedSteps(
                later,
                num_steps,
                (later_seconds - seconds) * 1e3 / num_steps,
                phases_ms={"evaluation": spent * 1e3 / num_steps} if spent else {},
                figures=bar.figures[figures[-1]] if figures else {},
                attempt=attempt,
            )
        )
        step, seconds = later, later_seconds
    return rows


def _without_skip(updates: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Updates from the start, or from the first one where it jumps to the step of a checkpoint."""
    (first, first_seconds), (last, last_seconds) = updates[0], updates[-1]
    usual = (last - first) / max(last_seconds - first_seconds, 1)
    is_jump = first > 1 and first / max(first_seconds, 1) > _MAX_SKIP * max(usual, 1e-9) and last > first
    return updates if is_jump else [(0, 0), *updates]
