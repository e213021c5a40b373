"""Lines as training frameworks print them, of steps with given durations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stepscope.collectors.training_logs.reading import read_training_log
from stepscope.core.documents.steps import TrainingLog

_START = datetime(2026, 4, 6, 22, 33, 50, tzinfo=UTC)
RED, END = "\x1b[31m", "\x1b[39m"


def at(seconds: float, form: str = "%Y-%m-%d %H:%M:%S,%f", digits: int = 3) -> str:
    """Time of a line, so many seconds after the start."""
    text = (_START + timedelta(seconds=seconds)).strftime(form)
    return text[: len(text) - 6 + digits] if form.endswith("%f") else text


def megatron(iteration: int, ms: float, *, seconds: float | None = None, average: float | None = None) -> str:
    """A line of Megatron-LM's; with the time of its later versions, and Primus' average."""
    stamp = "" if seconds is None else f" [{at(seconds, '%Y-%m-%d %H:%M:%S')}]"
    elapsed = f"{ms:.1f}" if average is None else f"{ms:.1f}/{average:.1f}"
    return (
        f"{stamp} iteration {iteration:8d}/    1000 | consumed samples: {4 * iteration:12d} |"
        f" elapsed time per iteration (ms): {elapsed} | throughput per GPU (TFLOP/s/GPU): 231.9 |"
        f" learning rate: 4.000000E-07 | global batch size:     4 | lm loss: 2.021530E+00 | loss scale: 1.0 |"
        f" grad norm: 6.895 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def deepspeed(iteration: int, seconds: float) -> str:
    """A line of BigScience's Megatron-DeepSpeed."""
    return (
        f" iteration {iteration:8d}/  115311 | consumed samples: {2048 * iteration:12d} | consumed tokens: 2015556403 |"
        f" elapsed time per iteration (s): {seconds:.2f} | learning rate: 5.969E-05 | global batch size:  2048 |"
        " lm loss: 2.463556E+00 | grad norm: 0.174 | num zeros: 0.0 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 | samples per second: 19.463 | TFLOPs: 149.02 |"
    )


def titan(step: int, seconds: float, tps: float = 7282, *, color: bool = False, form: str = "titan") -> str:
    """A line of torchtitan's at so many seconds."""
    red, end = (RED, END) if color else ("", "")
    prefix = {
        "titan": f"[titan] {at(seconds)} - root - INFO - ",
        "primus": f"[{at(int(seconds), '%Y%m%d %H:%M:%S')}][rank-0/8][INFO     ][---metrics.py:531] : ",
        "bare": "",
    }[form]
    return (
        f"{prefix}{red}step: {step:2}  {end}loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  "
        f"tps: {round(tps):,}  tflops: 0.52  mfu: 0.17%{end}"
    )


def titan_says(seconds: float, text: str) -> str:
    """Another line of torchtitan's."""
    return f"[titan] {at(seconds)} - root - INFO - {text}"


def bar(step: int, total: int, seconds: float, title: str = "") -> str:
    """A state of tqdm's progress bar."""
    hours, minutes = divmod(int(seconds) // 60, 60)
    elapsed = f"{hours}:{minutes:02d}:{int(seconds) % 60:02d}" if hours else f"{minutes:02d}:{int(seconds) % 60:02d}"
    rate = f"{step / seconds:.2f}it/s" if seconds and step > seconds else f"{seconds / max(step, 1):.2f}s/it"
    blocks = ("█" * (10 * step // total)).ljust(10)
    return f"{title}{100 * step // total:3d}%|{blocks}| {step}/{total} [{elapsed}<01:00, {rate}]"


def with_timers(lines: Iterable[str], timers: str) -> list[str]:
    """Each line followed by timers."""
    return [text for line in lines for text in (line, *timers.splitlines())]


def read(folder: Path, lines: Sequence[str], name: str = "job.log") -> TrainingLog:
    """The log of these lines."""
    path = folder / name
    path.write_text("\n".join(lines) + "\n", newline="")
    log = read_training_log(path)
    assert log is not None
    return log


def durations(log: TrainingLog) -> list[tuple[int, int, float]]:
    """Index, number of steps and ms of each row."""
    return [(steps.index, steps.num_steps, round(steps.ms, 1)) for steps in log.steps]
