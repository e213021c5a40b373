"""How is one capture taken with torch's profiler, from preparation to a whole trace file?

torch's own schedule machinery is left aside: it stays armed for the whole run, exports under gzip's slowest level, and
lets an error of the export travel into the training loop.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.training.run_directory import compress_trace


class Capture:
    """One prepared, then running, then exported recording.

    Attributes:
        first_step: index of the first captured step; names the folder.
        num_whole_steps: steps recorded from their beginning to their end.
    """

    def __init__(self, first_step: int, *, record_shapes: bool, with_stack: bool, profile_memory: bool) -> None:
        self.first_step = first_step
        self.num_whole_steps = 0
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "with_stack": with_stack,
            "profile_memory": profile_memory,
        }
        self._profiler: Any = None
        self._recording = False

    def prepare(self) -> None:
        """Set the profiler up, so that its start-up cost does not fall into a captured step.

        Raises:
            RuntimeError: another torch profiler runs.
        """
        from torch.profiler.profiler import _KinetoProfile  # documented in spite of its name

        _refuse_second_profiler()
        self._profiler = _KinetoProfile(
            activities=_activities(), experimental_config=_experimental_config(), **self._options
        )
        with warnings.catch_warnings():
            # torch 2.11 warns that a profiler's next cycle clears its events; ours has one cycle.
            warnings.filterwarnings("ignore", message=".*clears events at the end of each cycle")
            self._profiler.prepare_trace()

    def start(self) -> None:
        """Begin to record.

        Raises:
            RuntimeError: another torch profiler runs.
        """
        if self._profiler is None:
            self.prepare()
        _refuse_second_profiler()
        self._profiler.start_trace()
        self._recording = True

    def finish(self, target: Path) -> None:
        """Stop recording and write the trace to `target` (.json.gz), which appears only when whole.

        Raises:
            OSError: it cannot be written.
        """
        self._stop()
        target.parent.mkdir(parents=True, exist_ok=True)
        plain = target.with_name(f".{target.name}.{os.getpid()}.json")
        try:
            self._profiler.export_chrome_trace(str(plain))
            self._profiler = None
            compress_trace(plain, target)
        finally:
            with suppress(OSError):
                plain.unlink()

    def discard(self) -> None:
        """Stop whatever runs and write nothing."""
        if self._profiler is None:
            return
        if not self._recording:
            _refuse_second_profiler()
            self._profiler.start_trace()  # a prepared profiler can only be left by way of start
            self._recording = True
        self._stop()
        self._profiler = None

    def _stop(self) -> None:
        if self._recording:
            self._recording = False
            self._profiler.stop_trace()


def _refuse_second_profiler() -> None:
    """torch lets a second profiler start and silently takes the recording away from the first."""
    import torch

    if torch._C._autograd._profiler_enabled():
        raise RuntimeError("another torch profiler is recording this process; only one can")


def _activities() -> list[Any]:
    import torch
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    elif hasattr(torch, "xpu") and torch.xpu.is_available() and hasattr(ProfilerActivity, "XPU"):
        activities.append(ProfilerActivity.XPU)
    return activities


def _experimental_config() -> Any:
    """CUDA synchronisation records tell which stream waits for which; older torch does not know them."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(enable_cuda_sync_events=True)
    except (ImportError, TypeError):
        return None
