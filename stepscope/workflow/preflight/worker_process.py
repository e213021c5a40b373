"""Worker process of a preflight: answers requests, one per line, until its input ends.

    python -m stepscope.workflow.preflight.worker_process driver|cuda|cpu

A request names a method of `TorchDevice`, or of `DriverServer` for "driver", with its arguments:

    {"do": "describe"}                     {"versions": {...}, "devices": [{...}]}
    {"do": "multiply", "dtype": ..., ...}  {"seconds": ..., "spread": ..., "num_runs": ..., "num_wrong": 0}
    {"do": "count"}                        {"count": 8}
    {"do": "look", "index": 3}             {"key": ..., "labels": [...], "names": fields of GpuNames} or
                                           {"lost": [reason, detail]}
    {"do": "read", "key": ...}             {"collection": ..., "ends": {...}}
    {"do": "samples", "key": ...}          {"samples": [...]}
    ...                                    {"unsupported": "why"} or {"error": "what"}: after an error it ends

The parent waits with a deadline; whatever hangs is this process.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepscope.collectors.nvml.binding import GpuUnusableError
from stepscope.collectors.nvml.collector import GpuTarget, NvmlCollector
from stepscope.core.metrics.readings import GPU, Collection
from stepscope.core.metrics.stream import StreamWriter
from stepscope.workflow.preflight.device import Pace, UnsupportedError

if TYPE_CHECKING:
    from stepscope.workflow.preflight.torch_device import TorchDevice


_GRACE_SECONDS = 2.0
"""A call may go on for so long once the parent is gone."""
MAX_ERROR_CHARS = 400

Request = dict[str, Any]
Answer = dict[str, Any]


def answer_device(device: object, request: Request) -> Answer:
    """Answer a preflight's request by the device's method that it names."""
    arguments = dict(request)
    method = getattr(device, arguments.pop("do"))
    if "pace" in arguments:
        arguments["pace"] = Pace(**arguments["pace"])
    result = method(**arguments)
    return {} if result is None else asdict(result)


def serve_requests(answer: Callable[[Request], Answer]) -> int:
    """Answer a preflight's requests until standard input ends; the process's exit code."""
    replies = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not a reply
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), name="requests", daemon=True).start()
    while line := requests.get():
        try:
            reply, goes_on = answer(json.loads(line)), True
        except UnsupportedError as error:
            reply, goes_on = {"unsupported": str(error)}, True
        except Exception as error:  # whatever it is: after an error of CUDA nothing works in this process any more
            text = " ".join(f"{type(error).__name__}: {error}".split())
            reply, goes_on = {"error": text[:MAX_ERROR_CHARS]}, False
        os.write(replies, json.dumps(reply).encode() + b"\n")
        if not goes_on:
            return 1
    return 0


def _read(requests: queue.SimpleQueue[bytes]) -> None:
    """Pass requests on; when there are no more, end this process, also if a call hangs."""
    with open(0, "rb", buffering=0, closefd=False) as lines:
        for line in iter(lines.readline, b""):
            requests.put(line)
    requests.put(b"")
    threading.Event().wait(_GRACE_SECONDS)
    os._exit(1)


SAMPLED = frozenset(
    GPU + name
    for name in ("throttle_reason", "sm_clock_hertz", "temperature_celsius", "power_watts", "pcie_link_generation")
)
"""Metrics of each sample: those that change under load."""

SAMPLE_SECONDS = 0.5
MAX_SAMPLES = 1200


class DriverServer:
    """Answers a preflight's requests by NVML."""

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
        return {"collection": StreamWriter().write(self._read(key)), "ends": self._ends(key)}

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
        return {"samples": [StreamWriter().write(sample) for sample in self._samples]}

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


def main(kind: str) -> int:
    """Run as a preflight's worker: "driver" asks NVML, "cuda" and "cpu" measure such a device."""
    if kind == "driver":
        return serve_requests(DriverServer(NvmlCollector(slow_poll_seconds=0.0)).answer)
    devices: list[TorchDevice] = []

    def answer(request: Request) -> Answer:
        if not devices:  # with the first request: the parent's deadline covers the import
            if kind == "cpu":
                os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core a process
            from stepscope.workflow.preflight.torch_device import TorchDevice

            warnings.simplefilter("ignore")  # standard error is kept for what kills the process
            devices.append(TorchDevice(kind))
        return answer_device(devices[0], request)

    return serve_requests(answer)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(code)  # no clean-up of the driver: it can hang
