"""Worker process that measures a device: answers requests, one per line, until its input ends.

A request is a method of `PreflightDevice` with its arguments, the answer the fields of what it returns:

    {"do": "describe"}                     {"versions": {...}, "devices": [{...}]}
    {"do": "multiply", "dtype": ..., ...}  {"seconds": ..., "spread": ..., "num_runs": ..., "num_wrong": 0}
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
from typing import Any

from stepscope.workflow.preflight.device import Pace, PreflightDevice, UnsupportedError

_GRACE_SECONDS = 2.0
"""A call may go on for so long once the parent is gone."""
MAX_ERROR_CHARS = 400

Request = dict[str, Any]
Answer = dict[str, Any]


def answer_device(device: PreflightDevice, request: Request) -> Answer:
    """Call the method of the device that the request names."""
    arguments = dict(request)
    method = getattr(device, arguments.pop("do"))
    if "pace" in arguments:
        arguments["pace"] = Pace(**arguments["pace"])
    result = method(**arguments)
    return {} if result is None else asdict(result)


def serve(answer: Callable[[Request], Answer]) -> int:
    """Answer each request until standard input ends; the process's exit code."""
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


def main() -> int:
    """Run as a process, on the kind of device that is its argument."""
    device: list[PreflightDevice] = []

    def answer(request: Request) -> Answer:
        if not device:  # with the first request: the parent's deadline covers the import
            if sys.argv[1] == "cpu":
                os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core a process
            from stepscope.workflow.preflight.torch_device import TorchDevice

            warnings.simplefilter("ignore")  # standard error is kept for what kills the process
            device.append(TorchDevice(sys.argv[1]))
        return answer_device(device[0], request)

    return serve(answer)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # no clean-up of the driver: it can hang
