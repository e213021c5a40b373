"""How is one capture taken with torch's profiler, from preparation to a whole trace file?

torch's own schedule machinery is left aside: it stays armed for the whole run, exports under gzip's slowest level, and
lets an error of the export travel into the training loop.

Only one torch profiler can record a process. A second one silently takes the recording over, and a profiler whose
recording was taken ends the process with a segmentation fault when it exports. So ours never starts beside another, and
steps aside when another begins.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.core.run_layout import WHOLE_STEPS_KEY
from stepscope.training.run_directory import compress_trace, partial_path

logger = logging.getLogger(__name__)

_BEGINNINGS = ("_prepare_trace", "_start_trace")
"""Methods of torch's profiler with which another one begins."""


class Capture:
    """One prepared, then running, then exported recording.

    Args:
        target: the trace's final path (.json.gz).
        before_stepping_aside: closes every span of ours: one that ends under another profiler than it began under
            makes torch write into freed memory.

    Attributes:
        first_step: index of the first captured step; names the folder.
        num_whole_steps: steps recorded from their beginning to their end.
        is_recording: False again once another profiler has begun.
    """

    def __init__(
        self,
        first_step: int,
        target: Path,
        before_stepping_aside: Callable[[], None],
        *,
        record_shapes: bool,
        with_stack: bool,
        profile_memory: bool,
    ) -> None:
        self.first_step = first_step
        self._target = target
        self._before_stepping_aside = before_stepping_aside
        self._plain = partial_path(target, ".plain")
        self.num_whole_steps = 0
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "with_stack": with_stack,
            "profile_memory": profile_memory,
        }
        self._profiler: Any = None
        self.is_recording = False
        self._started = False
        self._thread = 0
        self._watched: dict[str, Callable[..., Any]] = {}

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
        self._started = self.is_recording = True
        self._thread = threading.get_ident()
        self._watch()

    def finish(self) -> None:
        """Stop recording and write the trace to its target, which appears only when whole.

        Raises:
            OSError: it cannot be written.
            RuntimeError: another profiler ended the recording.
        """
        self.stop()
        try:
            if self._profiler is not None:
                self._export()
            elif not self._plain.exists():
                raise RuntimeError("another torch profiler ended this capture, which is lost")
            compress_trace(self._plain, self._target)
        finally:
            with suppress(OSError):
                self._plain.unlink()

    def _export(self) -> None:
        self._plain.parent.mkdir(parents=True, exist_ok=True)
        profiler, self._profiler = self._profiler, None
        profiler.export_chrome_trace(str(self._plain))

    def discard(self) -> None:
        """Stop whatever runs and leave no file."""
        with suppress(OSError):
            self._plain.unlink()
        if self._profiler is None:
            return
        if not self._started:
            _refuse_second_profiler()
            self._profiler.start_trace()  # a prepared profiler can only be left by way of start
            self._started = self.is_recording = True
        try:
            self.stop()
        finally:
            self._profiler = None

    def stop(self) -> None:
        """Stop recording; what is recorded is kept for `finish`.

        Raises:
            RuntimeError: another profiler ended the recording, and what was recorded is lost.
        """
        if not self.is_recording:
            return
        self.is_recording = False
        self._unwatch()
        if not _is_profiler_enabled():
            self._profiler = None
            raise RuntimeError("another torch profiler ended this capture, which is lost; let only one run")
        whole_steps = range(self.first_step, self.first_step + self.num_whole_steps)
        self._profiler.add_metadata_json(WHOLE_STEPS_KEY, json.dumps(list(whole_steps)))
        self._profiler.stop_trace()

    def _watch(self) -> None:
        """While ours records, be told before another profiler of this thread begins."""
        from torch.autograd.profiler import profile

        for name in _BEGINNINGS:
            original = vars(profile).get(name)
            if original is not None:
                self._watched[name] = original
                setattr(profile, name, self._stepping_aside(original))

    def _unwatch(self) -> None:
        from torch.autograd.profiler import profile

        for name, original in self._watched.items():
            if getattr(vars(profile)[name], "__wrapped__", None) is original:  # else someone has wrapped ours
                setattr(profile, name, original)
        self._watched = {}

    def _stepping_aside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def begin(other: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_recording and threading.get_ident() == self._thread:
                logger.warning(
                    "another torch profiler began while stepscope captured step %d and on; it goes on alone, stepscope"
                    " keeps the %d whole steps it has",
                    self.first_step,
                    self.num_whole_steps,
                )
                try:
                    self._before_stepping_aside()
                    self.stop()
                    if self.num_whole_steps:
                        self._export()  # now: torch crashes when it exports one recording while it makes another
                except (RuntimeError, OSError):  # said already
                    logger.debug("stop failed", exc_info=True)
            return original(other, *args, **kwargs)

        return begin


def _refuse_second_profiler() -> None:
    if _is_profiler_enabled():
        raise RuntimeError("another torch profiler is recording this process; only one can")


def _is_profiler_enabled() -> bool:
    import torch

    return bool(torch._C._autograd._profiler_enabled())


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
