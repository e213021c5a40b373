"""Worker process that reads GPUs for the agent: answers requests, one a line, until its input ends.

    {"do": "look", "skip": [3]}      list the GPUs without these indices
        {"count": 8}, then for each {"index": 0, "target": {"key": ..., "labels": [...]}}
        or {"index": 0, "missing": [reason, detail]}
    {"do": "sweep", "keys": [...]}   read these GPUs
        for each {"key": ..., "parts": {part: message}, "usable": true, "seconds": 0.01}; each part of a GPU is a stream
        of `core.metrics.stream`
    each ends with {"end": true}; {"unusable": [reason, detail]} instead: no GPU can be asked, the process ends

Answers are sent one by one: the GPU after the last answer is the one at which the driver hangs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from stepscope.collectors.nvml.binding import DriverUnusableError
from stepscope.collectors.nvml.collector import GpuTarget, NvmlCollector
from stepscope.core.metrics.stream import StreamWriter
from stepscope.core.process import signal_at_parent_death, trim_memory

_AS_JSON = json.JSONEncoder(separators=(",", ":")).encode

Streams = defaultdict[tuple[str, str], StreamWriter]
"""By key of the GPU and part, for as long as the process lives."""


def answers_to(collector: NvmlCollector, request: dict[str, Any], streams: Streams) -> Iterator[dict[str, Any]]:
    """Answers of the NVML worker to a request, see the module's docstring.

    Raises:
        DriverUnusableError: no GPU can be asked.
    """
    if request["do"] == "look":
        count = collector.count()
        yield {"count": count}
        for index in range(count):
            if index in request["skip"] or index not in request.get("only", range(count)):
                continue
            found = collector.target(index)
            if isinstance(found, GpuTarget):
                yield {"index": index, "target": {"key": found.key, "labels": found.labels}}
            else:
                yield {"index": index, "missing": [found.reason, found.detail]}
    else:
        for key in request["keys"]:
            begin = time.monotonic()
            parts = collector.sweep(key)
            yield {
                "key": key,
                "parts": {part: streams[key, part].write(collection) for part, collection in parts.items()},
                "usable": collector.is_usable(key),
                "seconds": time.monotonic() - begin,
            }
    yield {"end": True}


def serve_requests(collector: NvmlCollector, requests: int, replies: int) -> int:
    """Run the NVML worker on two file descriptors until the input ends or nobody reads; returns the exit code."""
    streams: Streams = defaultdict(StreamWriter)
    with open(requests, "rb", buffering=0) as lines:
        for line in iter(lines.readline, b""):
            try:
                if not _answer(collector, json.loads(line), streams, replies):
                    return 1
            except BrokenPipeError:
                break
    return 0


def _answer(collector: NvmlCollector, request: dict[str, Any], streams: Streams, replies: int) -> bool:
    """Answer one request; whether any GPU can be asked."""
    try:
        for answer in answers_to(collector, request, streams):
            os.write(replies, _AS_JSON(answer).encode() + b"\n")
    except DriverUnusableError as error:
        os.write(replies, _AS_JSON({"unusable": [error.reason, error.detail]}).encode() + b"\n")
        return False
    return True


def end_on_signal(grace_seconds: float) -> None:
    """Let SIGTERM or the agent's death end the NVML worker between two calls, or in a hanging one after the grace time.

    A process that is killed in a call of the driver can freeze a GPU (NVIDIA/dcgm-exporter#84).
    """
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)  # written to at once, also while a call hangs

    def wait() -> None:
        os.read(wakeup_read, 1)
        time.sleep(grace_seconds)
        os._exit(1)

    threading.Thread(target=wait, name="end-on-signal", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent gets it too, and ends this process
    signal_at_parent_death(signal.SIGTERM)


def run_nvml_worker() -> int:
    """Run the NVML worker as a process: requests on standard input, replies on standard output."""
    slow_poll_seconds, grace_seconds = (float(argument) for argument in sys.argv[1:])
    end_on_signal(grace_seconds)
    replies = os.dup(1)
    os.dup2(2, 1)  # prints of the driver's library are not replies
    collector = NvmlCollector(slow_poll_seconds=slow_poll_seconds)
    trim_memory()
    try:
        return serve_requests(collector, 0, replies)
    finally:
        collector.close()


if __name__ == "__main__":
    sys.exit(run_nvml_worker())
