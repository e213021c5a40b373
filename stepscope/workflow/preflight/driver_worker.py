"""Worker process that asks the driver about GPUs; it answers as `device_worker` does.

{"do": "count"}                {"count": 8}: GPUs that the driver knows
{"do": "look", "index": 3}     {"key": ..., "labels": [...], "names": {...}}: which GPU that is, see `GpuNames`;
                               or {"lost": [reason, detail]}
{"do": "read", "key": ...}     {"collection": ..., "ends": {...}}: all of one GPU, and where its NVLinks end
{"do": "watch", "key": ...}    {}; from then on it reads what changes under load
{"do": "told"}                 {"samples": [...]}: what it read since
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import asdict

from stepscope.collectors.nvml import GpuTarget, NvmlCollector
from stepscope.collectors.nvml.binding import GpuUnusableError
from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.readings import Collection, written_alone
from stepscope.workflow.preflight.device_worker import Answer, Request, serve

SAMPLED = frozenset(
    GPU + name
    for name in (
        "throttle_reason",
        "sm_clock_hertz",
        "temperature_celsius",
        "power_watts",
        "pcie_link_generation",
    )
)
"""Metrics that are told of each sample."""

_SECONDS_APART = 0.5
_MOST_SAMPLES = 1200


class StateServer:
    """Answers for one process."""

    def __init__(self, collector: NvmlCollector) -> None:
        self._collector = collector
        self._samples: list[Collection] = []
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def answer(self, request: Request) -> Answer:
        """The answer to one request.

        Raises:
            DriverUnusableError: no GPU can be asked.
        """
        do = request["do"]
        if do == "count":
            return {"count": self._collector.count()}
        if do == "look":
            return self._look(request["index"])
        if do == "read":
            return {"collection": written_alone(self._read(request["key"])), "ends": self._ends(request["key"])}
        if do == "watch":
            self._stop.clear()
            self._watcher = threading.Thread(target=self._watch, args=(request["key"],), daemon=True)
            self._watcher.start()
            return {}
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        return {"samples": [written_alone(sample) for sample in self._samples]}

    def _look(self, index: int) -> Answer:
        found = self._collector.target(index)
        if not isinstance(found, GpuTarget):
            return {"lost": [found.reason, found.detail]}
        try:
            names = self._collector.names(found.key)
        except GpuUnusableError as error:
            return {"lost": [error.reason, error.detail]}
        return {"key": found.key, "labels": found.labels, "names": asdict(names)}

    def _read(self, key: str) -> Collection:
        return Collection.joined(self._collector.sweep(key).values())

    def _ends(self, key: str) -> dict[str, int]:
        try:
            return self._collector.nvlink_ends(key)
        except GpuUnusableError:
            return {}

    def _watch(self, key: str) -> None:
        while not self._stop.is_set() and len(self._samples) < _MOST_SAMPLES:
            whole = self._read(key)
            told = tuple(reading for reading in whole.readings if reading.metric in SAMPLED)
            self._samples.append(Collection(readings=told, findings=whole.findings))
            self._stop.wait(_SECONDS_APART)


def main() -> int:
    """Run as a process."""
    return serve(StateServer(NvmlCollector(slow_poll_seconds=0.0)).answer)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # no farewell to a driver: it can hang
