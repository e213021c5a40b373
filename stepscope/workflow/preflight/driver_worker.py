"""Worker process that asks NVML about GPUs, in the protocol of `device_worker`.

{"do": "count"}                {"count": 8}
{"do": "look", "index": 3}     {"key": ..., "labels": [...], "names": fields of GpuNames} or {"lost": [reason, detail]}
{"do": "read", "key": ...}     {"collection": ..., "ends": {...}}
{"do": "watch", "key": ...}    {}
{"do": "samples", "key": ...}  {"samples": [...]}
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import asdict

from stepscope.collectors.nvml import GpuTarget, NvmlCollector
from stepscope.collectors.nvml.binding import GpuUnusableError
from stepscope.core.metrics.readings import GPU, Collection, written_alone
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
"""Metrics of each sample: those that change under load."""

SAMPLE_SECONDS = 0.5
MAX_SAMPLES = 1200


class StateServer:
    """Answers the requests of one process."""

    def __init__(self, collector: NvmlCollector) -> None:
        self._collector = collector
        self._samples: list[Collection] = []
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def answer(self, request: Request) -> Answer:
        """Call the method that the request names, with its other fields.

        Raises:
            DriverUnusableError: no GPU can be asked.
        """
        arguments = dict(request)
        answer: Answer = getattr(self, arguments.pop("do"))(**arguments)
        return answer

    def count(self) -> Answer:
        """Number of GPUs."""
        return {"count": self._collector.count()}

    def look(self, index: int) -> Answer:
        """Names of one GPU, or why it does not answer."""
        target = self._collector.target(index)
        if not isinstance(target, GpuTarget):
            return {"lost": [target.reason, target.detail]}
        try:
            names = self._collector.names(target.key)
        except GpuUnusableError as error:
            return {"lost": [error.reason, error.detail]}
        return {"key": target.key, "labels": target.labels, "names": asdict(names)}

    def read(self, key: str) -> Answer:
        """All readings of one GPU, and where its NVLinks end."""
        return {"collection": written_alone(self._read(key)), "ends": self._ends(key)}

    def watch(self, key: str) -> Answer:
        """Sample one GPU from now on."""
        self._stop.clear()
        self._watcher = threading.Thread(target=self._watch, args=(key,), daemon=True)
        self._watcher.start()
        return {}

    def samples(self, key: str) -> Answer:  # noqa: ARG002 - as the other requests
        """Stop sampling; the samples."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        return {"samples": [written_alone(sample) for sample in self._samples]}

    def _read(self, key: str) -> Collection:
        return Collection.joined(self._collector.sweep(key).values())

    def _ends(self, key: str) -> dict[str, int]:
        try:
            return self._collector.nvlink_ends(key)
        except GpuUnusableError:
            return {}

    def _watch(self, key: str) -> None:
        while not self._stop.is_set() and len(self._samples) < MAX_SAMPLES:
            whole = self._read(key)
            sampled = tuple(reading for reading in whole.readings if reading.metric in SAMPLED)
            self._samples.append(Collection(readings=sampled, findings=whole.findings))
            self._stop.wait(SAMPLE_SECONDS)


def main() -> int:
    """Run as a process."""
    return serve(StateServer(NvmlCollector(slow_poll_seconds=0.0)).answer)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # no clean-up of the driver: it can hang
