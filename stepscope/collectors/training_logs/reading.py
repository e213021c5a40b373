"""Reading of a console log whatever framework wrote it."""

from __future__ import annotations

from pathlib import Path

from stepscope.collectors.training_logs.hf_trainer import HfTrainerLog
from stepscope.collectors.training_logs.megatron import MegatronLog
from stepscope.collectors.training_logs.other_frameworks import OneLineLog
from stepscope.collectors.training_logs.text import log_lines
from stepscope.collectors.training_logs.torchtitan import TorchtitanLog
from stepscope.core.documents.run_directory import TrainingLog

_OF_TRACES, _HEADER_LINES = '"traceEvents"', 5_000
"""A profiler's trace has this in its header: some hundred megabytes need not be searched for steps."""


def read_training_log(path: Path) -> TrainingLog | None:
    """The steps of a log; None where no known framework's steps are in it.

    A log of several frameworks is of the first that has steps: Megatron's prints what DeepSpeed and progress bars print
    again.

    Raises:
        DataError: it cannot be read.
    """
    readers = MegatronLog(), TorchtitanLog(), OneLineLog(), HfTrainerLog()
    is_object = False
    for number, line in enumerate(log_lines(path)):
        is_object = is_object or (number == 0 and line.startswith("{"))
        if is_object and number < _HEADER_LINES and _OF_TRACES in line:
            return None
        for reader in readers:
            reader.take(line)
    logs = [log for log in (reader.finish() for reader in readers) if log is not None]
    return next((log for log in logs if log.steps), logs[0] if logs else None)
