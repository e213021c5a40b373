"""Recording with torch's profiler, from preparation to its result, and the watch for other profilers in the process.

torch's own schedule is not used: it stays armed for the whole run, exports at gzip's slowest level, and lets an export
error reach the training loop.

Only one torch profiler can record a process. A second one silently takes the recording over, and a profiler that lost
its recording ends the process with a segmentation fault when it exports. So a capture never starts beside another
profiler, and ends when another one begins.
"""

from __future__ import annotations

import functools
import json
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from stepscope.core.documents.run_directory import WHOLE_STEPS_KEY
from stepscope.core.process import Patch
from stepscope.training.captures.cupti import CuptiDetachment
from stepscope.training.captures.trace_export import save_recording, write_trace
from stepscope.training.run.run_files import partial_path

DETACHMENT = CuptiDetachment()
"""One a process, as CUPTI is."""


class Recording:
    """One recording of torch's profiler for a capture: prepared, running, then stopped.

    Args:
        target: the trace's final path (.json.gz).
        is_light: record the GPU's activities and runtime calls alone.

    Attributes:
        first_step: index of the first profiled step; names the folder.
        num_whole_steps: steps recorded from their beginning to their end.
        is_recording: False again once another profiler has begun.
    """

    def __init__(
        self,
        first_step: int,
        target: Path,
        *,
        is_light: bool = False,
        record_shapes: bool = False,
        with_stack: bool = False,
        profile_memory: bool = False,
    ) -> None:
        self.first_step = first_step
        self.num_whole_steps = 0
        self.is_recording = False
        self.target = target
        self._plain = partial_path(target, ".plain")
        self._is_light = is_light
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "with_stack": with_stack,
            "profile_memory": profile_memory,
        }
        self._profiler: Any = None
        self._started = self._has_plain = False
        self._thread = 0

    def prepare(self) -> None:
        """Set the profiler up, so that its start-up cost does not fall into a profiled step.

        Raises:
            RuntimeError: another torch profiler runs.
        """
        from torch.profiler.profiler import _KinetoProfile  # documented in spite of its name

        refuse_second_profiler()
        DETACHMENT.wait()
        self._profiler = _KinetoProfile(
            activities=_activities(is_light=self._is_light), experimental_config=_experimental_config(), **self._options
        )
        with warnings.catch_warnings():
            # torch 2.11 warns that a profiler's next cycle clears its events; ours has one cycle.
            warnings.filterwarnings("ignore", message=".*clears events at the end of each cycle")
            self._profiler.prepare_trace()

    def start(self) -> None:
        """Start to record.

        Raises:
            RuntimeError: another torch profiler runs.
        """
        if self._profiler is None:
            self.prepare()
        refuse_second_profiler()
        self._profiler.start_trace()
        self._started = self.is_recording = True
        self._thread = threading.get_ident()

    def finish(self) -> Callable[[], None]:
        """Stop recording. Returns a function that writes the trace to its target, which appears only when whole.

        Raises:
            RuntimeError: another profiler ended the recording.
        """
        self.stop()
        if self._profiler is None and not self._has_plain:
            raise RuntimeError("another torch profiler ended this capture, which is lost")
        return functools.partial(write_trace, self._recording(), self._plain, self.target)

    @property
    def records_this_thread(self) -> bool:
        """Whether a profiler that begins on the calling thread would take the recording over."""
        return self.is_recording and threading.get_ident() == self._thread

    def step_aside(self) -> None:
        """Make room for another profiler that is about to begin.

        The recording is written now: torch crashes when it exports one recording while it makes another.

        Raises:
            OSError: it cannot be written.
            RuntimeError: another profiler ended the recording.
        """
        self.stop(detach=False)
        if self.num_whole_steps:
            self._plain.parent.mkdir(parents=True, exist_ok=True)
            self._has_plain = True
            save_recording(self._recording(), self._plain)

    def discard(self) -> None:
        """Stop recording and leave no file."""
        if self._has_plain:
            with suppress(OSError):
                self._plain.unlink()
        if self._profiler is None:
            return
        if not self._started:
            refuse_second_profiler()
            self._profiler.start_trace()  # a prepared profiler can only be dropped by way of start
            self._started = self.is_recording = True
        try:
            self.stop()
        finally:
            self._profiler = None

    def stop(self, *, detach: bool = True) -> None:
        """Stop recording; the result is kept for `finish`.

        Args:
            detach: detach CUPTI, unless another recording follows at once.

        Raises:
            RuntimeError: another profiler ended the recording, which is lost.
        """
        if not self.is_recording:
            return
        self.is_recording = False
        if not is_recording():
            self._profiler = None
            raise RuntimeError("another torch profiler ended this capture, which is lost; let only one run")
        whole_steps = range(self.first_step, self.first_step + self.num_whole_steps)
        self._profiler.add_metadata_json(WHOLE_STEPS_KEY, json.dumps(list(whole_steps)))
        with DETACHMENT.ending_recording() if detach else nullcontext():
            self._profiler.stop_trace()

    def _recording(self) -> Any:
        """torch's result, handed over once; None afterwards."""
        profiler, self._profiler = self._profiler, None
        return None if profiler is None else profiler.profiler.kineto_results


def has_gpu_activities() -> bool:
    """Whether torch sees a GPU; asked of the driver's library for management, so that a later fork may still use it."""
    import torch

    return bool(torch.cuda.device_count())


def _activities(*, is_light: bool) -> list[Any]:
    import torch
    from torch.profiler import ProfilerActivity

    activities = [] if is_light else [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    elif hasattr(torch, "xpu") and torch.xpu.is_available() and hasattr(ProfilerActivity, "XPU"):
        activities.append(ProfilerActivity.XPU)
    return activities


def _experimental_config() -> Any:
    """Options of the profiler; those that an older torch does not know are left out.

    CUDA synchronisation records show which stream waits for which. With trace_only a recording stops about 10% faster.
    """
    import torch

    options = {"trace_only": True}
    if torch.cuda.is_available():
        options = {"enable_cuda_sync_events": True} | options
    while options:
        try:
            from torch._C._profiler import _ExperimentalConfig

            return _ExperimentalConfig(**options)  # type: ignore[arg-type]  # bools all
        except (ImportError, TypeError):
            options.popitem()
    return None


_BEGINNINGS = ("_prepare_trace", "_start_trace")
"""Methods of torch's profiler with which a profiler begins."""


def is_recording() -> bool:
    """Whether a torch profiler records this process, beside which no capture may begin."""
    import torch

    return bool(torch._C._autograd._profiler_enabled())


def refuse_second_profiler() -> None:
    """Raise RuntimeError while a torch profiler records this process."""
    if is_recording():
        raise RuntimeError("another torch profiler is recording this process; only one can")


class OtherProfilerWatch:
    """Watch for other torch profilers: calls `about_to_begin` on their thread before any of them begins a recording."""

    def __init__(self, about_to_begin: Callable[[], None]) -> None:
        self._about_to_begin = about_to_begin
        self._patches: list[Patch] = []

    def start(self) -> None:
        """Begin to watch; no effect while it does."""
        if self._patches:
            return
        from torch.autograd.profiler import profile

        self._patches = [Patch(profile, name, self._watched) for name in _BEGINNINGS if name in vars(profile)]

    def stop(self) -> None:
        """Restore torch, except where other code has wrapped the wrapper."""
        patches, self._patches = self._patches, []
        for patch in patches:
            patch.leave()

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(other: Any, *args: Any, **kwargs: Any) -> Any:
            if self._patches:
                with suppress(Exception):  # must never fail the other profiler
                    self._about_to_begin()
            return original(other, *args, **kwargs)

        return begin
