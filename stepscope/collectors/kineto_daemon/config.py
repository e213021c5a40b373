"""What text makes libkineto trace exactly N optimizer steps, and under which name does the trace appear?

The traps (pytorch/kineto, Config.cpp and AsyncActivityProfilerHandler.cpp):

- A request by iterations that comes before the first optimizer step, so also during `import torch`, becomes one by
  time, and its trace is empty or holds imports alone: but only where the duration, 500 ms unless given, is above 0.
  With ACTIVITIES_DURATION_MSECS=0 the process refuses it, leaves no file, and can be asked again.
- PROFILE_START_ITERATION_ROUNDUP starts at the next multiple of it, which is the same step on all ranks that hear of it
  between the same two multiples.
- Lines are cut at '#', split at '=', and the process's id is put before the first ".json" anywhere in the path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

_PATH = re.compile(r"/[A-Za-z0-9_+@%,:./-]+\.json")
_WARM_UP_ITERATIONS = 1
"""The step in which CUPTI starts is not in the trace."""


@dataclass(frozen=True, slots=True)
class StepsConfig:
    """A trace of optimizer steps.

    Attributes:
        path: where to; in the process's own file system.
        num_steps: calls of a torch.optim optimizer's step().
        start_multiple: it begins after a step whose number, counted by the process from 0, is a multiple of this.

    Raises:
        ValueError: the path has what libkineto would read otherwise, or a number is not positive.
    """

    path: PurePosixPath
    num_steps: int
    start_multiple: int = 1

    def __post_init__(self) -> None:
        text = str(self.path)
        if not _PATH.fullmatch(text) or ".." in text or text.count(".json") != 1:
            raise ValueError(f"libkineto cannot be given the path {text!r}")
        if self.num_steps < 1 or self.start_multiple < 1:
            raise ValueError("num_steps and start_multiple are at least 1")

    def text(self) -> str:
        """The lines for libkineto."""
        return "".join(
            f"{key}={value}\n"
            for key, value in (
                ("ACTIVITIES_LOG_FILE", self.path),
                ("PROFILE_START_ITERATION", 0),
                ("PROFILE_START_ITERATION_ROUNDUP", self.start_multiple),
                ("ACTIVITIES_WARMUP_ITERATIONS", _WARM_UP_ITERATIONS),
                ("ACTIVITIES_ITERATIONS", self.num_steps),
                ("ACTIVITIES_DURATION_MSECS", 0),
                ("PROFILE_REPORT_INPUT_SHAPES", "true"),  # the roofline needs them
                ("PROFILE_WITH_STACK", "false"),  # Python's frames make steps several times as long
            )
        )

    def written_path(self, pid: int) -> PurePosixPath:
        """Where the trace of a process appears, renamed once it is whole.

        Args:
            pid: of the process in its own namespace.
        """
        return self.path.with_name(f"{self.path.name.removesuffix('.json')}_{pid}.json")
