"""Worker process that measures a device: answers requests, one a line, until its input ends.

    {"do": "describe", "beside": "..."}    {"versions": {...}, "devices": [{...}]}
    {"do": "multiply", "dtype": ..., ...}  {"seconds": ..., "spread": ..., "runs": ...}
    ...                                    {"unsupported": "why"} or {"error": "what"}: after an error it ends

The parent waits no longer than it wants to; whatever hangs is this process.
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

from stepscope.workflow.preflight.device import Device, Pace, Timing, UnsupportedError

_GRACE_SECONDS = 2.0
"""What a call may go on for once the parent is gone."""
_LONGEST_ERROR = 400

Request = dict[str, Any]
Answer = dict[str, Any]


def answer_device(device: Device, request: Request) -> Answer:
    """What a device answers to a request of the parent."""
    do = request["do"]
    if do == "describe":
        versions, devices = device.describe(request.get("beside", ""))
        return {"versions": versions, "devices": [asdict(one) for one in devices]}
    if do == "check_products":
        return asdict(device.check_products(request["dtype"], request["size"], request["repeats"]))
    if do == "join":
        device.join(request["rank"], request["world_size"], request["path"], request["seconds"])
        return {}
    if do == "all_reduce":
        timing, num_wrong = device.all_reduce(request["bytes"], request["warm"], request["runs"])
        return {**_timing(timing), "num_wrong": num_wrong}
    pace = Pace(**request["pace"])
    if do == "multiply":
        return _timing(device.multiply(request["dtype"], request["size"], pace))
    if do == "copy_to_peer":
        source, target = request["source"], request["target"]
        timing, is_direct, num_wrong = device.copy_to_peer(source, target, request["bytes"], pace)
        return {**_timing(timing), "is_direct": is_direct, "num_wrong": num_wrong}
    copy = {"copy": device.copy, "upload": device.upload, "download": device.download}[do]
    timing, num_wrong = copy(request["bytes"], pace)
    return {**_timing(timing), "num_wrong": num_wrong}


def serve(answer: Callable[[Request], Answer]) -> int:
    """Answer until standard input ends; the process's exit code.

    Args:
        answer: to one request.
    """
    replies = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no reply
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), name="requests", daemon=True).start()
    while line := requests.get():
        try:
            reply, goes_on = answer(json.loads(line)), True
        except UnsupportedError as error:
            reply, goes_on = {"unsupported": str(error)}, True
        except Exception as error:  # whatever it is: after an error of CUDA nothing works in this process any more
            text = " ".join(f"{type(error).__name__}: {error}".split())
            reply, goes_on = {"error": text[:_LONGEST_ERROR]}, False
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
    device: list[Device] = []

    def answer(request: Request) -> Answer:
        if not device:  # with the first request: the parent's deadline covers the import
            if sys.argv[1] == "cpu":
                os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core a process
            from stepscope.workflow.preflight.torch_device import TorchDevice

            warnings.simplefilter("ignore")  # standard error is kept for what kills the process
            device.append(TorchDevice(sys.argv[1]))
        return answer_device(device[0], request)

    return serve(answer)


def _timing(timing: Timing) -> Answer:
    return {"seconds": timing.seconds, "spread": timing.spread, "runs": timing.num_runs}


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # no farewell to a driver: it can hang
