"""Fake measuring process of a preflight: H100s, some with the faults that a file lists.

FAKE_GPUS is a file: {"GPU-...": {"slow": {"copy": 0.5}, "hang": "multiply", "die": "upload", "error": "copy",
"gone": true, "differing": 2, "wrong": 3, "wrong_bytes": 4, "wrong_upload": 8}}. Durations are only
reported: nothing waits. FAKE_SHOWN: UUIDs visible to CUDA by default; all if unset.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from stepscope.workflow.preflight.device import (
    DeviceFacts,
    Pace,
    ProductErrors,
    Timing,
    UnsupportedError,
    WorkerDescription,
)
from stepscope.workflow.preflight.worker_process import answer_device, serve_requests

NAME = "NVIDIA H100 80GB HBM3"
RATES = {
    "copy": 2.9e12,
    "upload": 54e9,
    "download": 53e9,
    "bfloat16": 740e12,
    "float16": 735e12,
    "tfloat32": 380e12,
    "float32": 50e12,
    "float8": 1350e12,
    "copy_to_peer": 380e9,
    "all_reduce": 365e9,
}


def uuid_of(index: int) -> str:
    """As the fake NVML has it."""
    return f"GPU-{index:08x}-0000-4000-8000-000000000000"


def _name_of(uuid: str) -> str:
    return f"{NAME} MIG 1g.10gb" if uuid.startswith("MIG-") else NAME


class FakeDevice:
    """See `torch_device.TorchDevice`."""

    def __init__(self, faults: dict[str, dict[str, Any]], visible: list[str]) -> None:
        self._faults = faults
        self._visible = visible
        self._world_size = 0

    def describe(self, beside: str = "") -> WorkerDescription:
        self._fault("describe")
        assert beside in ("", *(f"00000000:{0x0F + 0x10 * index:02X}:00.0" for index in range(8)))
        versions = {"torch": "2.9.0", "cuda": "12.8"}
        if any(self._of(place).get("gone") for place in range(len(self._visible))):
            return WorkerDescription(versions, [])  # one GPU off the bus can hide all others from CUDA
        devices = [
            DeviceFacts(place, _name_of(name), name.removeprefix("GPU-")) for place, name in enumerate(self._visible)
        ]
        return WorkerDescription(versions, devices)

    def copy(self, num_bytes: int, pace: Pace) -> Timing:  # noqa: ARG002 - the interface's
        return self._timing("copy", 2 * num_bytes, num_wrong=self._of(0).get("wrong_copy", 0))

    def upload(self, num_bytes: int, pace: Pace) -> Timing:  # noqa: ARG002
        return self._timing("upload", num_bytes, num_wrong=self._of(0).get("wrong_upload", 0))

    def download(self, num_bytes: int, pace: Pace) -> Timing:  # noqa: ARG002
        return self._timing("download", num_bytes, num_wrong=self._of(0).get("wrong_download", 0))

    def multiply(self, dtype: str, size: int, pace: Pace) -> Timing:  # noqa: ARG002
        self._fault("multiply")
        return self._timing(dtype, 2 * size**3)

    def check_products(self, dtype: str, size: int, num_repeats: int) -> ProductErrors:  # noqa: ARG002
        self._fault("check_products")
        if dtype == "float8":
            raise UnsupportedError("no units")
        return ProductErrors(num_repeats, self._of(0).get("differing", 0), self._of(0).get("wrong", 0))

    def copy_to_peer(self, source: int, target: int, num_bytes: int, pace: Pace) -> Timing:  # noqa: ARG002
        wrong = sum(self._of(place).get("wrong_bytes", 0) for place in (source, target))
        return self._timing("copy_to_peer", num_bytes, target, num_wrong=wrong)

    def join(self, rank: int, world_size: int, path: str, seconds: float) -> None:  # noqa: ARG002
        self._fault("join")
        assert Path(path).parent.is_dir()
        self._world_size = world_size

    def all_reduce(self, num_bytes: int, num_warm: int, num_runs: int) -> Timing:  # noqa: ARG002
        return self._timing("all_reduce", num_bytes * 2 * (self._world_size - 1) / self._world_size)

    def _timing(self, what: str, amount: float, place: int = 0, *, num_wrong: int = 0) -> Timing:
        self._fault(what, place)
        seconds = amount / RATES[what] / self._of(place).get("slow", {}).get(what, 1.0)
        return Timing(seconds, 0.01, 20, num_wrong)

    def _fault(self, what: str, place: int = 0) -> None:
        mine = self._of(place)
        if mine.get("hang") == what:
            threading.Event().wait()
        if mine.get("die") == what:
            sys.stderr.write("Xid: the device is lost\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGABRT)
        if mine.get("error") == what:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    def _of(self, place: int) -> dict[str, Any]:
        return self._faults.get(self._visible[place], {}) if self._visible else {}


def main() -> int:
    names = [uuid_of(index) for index in range(int(os.environ["FAKE_GPU_COUNT"]))]
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    told = os.environ.get("FAKE_SHOWN") if told is None else told
    chosen = names if told is None else [one for one in told.split(",") if one]
    visible = [names[int(one)] if one.isdecimal() else one for one in chosen]
    device = FakeDevice(json.loads(Path(os.environ["FAKE_GPUS"]).read_text()), visible)
    return serve_requests(lambda request: answer_device(device, request))


if __name__ == "__main__":
    os._exit(main())
