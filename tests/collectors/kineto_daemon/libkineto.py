"""A process's side of the protocol: asks as libkineto does, and writes the traces that it is asked for."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

STEP_US = 20_000.0


def trace_text(num_steps: int, *, rank: int | None = None) -> str:
    """A trace of so many optimizer steps."""
    events: list[dict[str, Any]] = []
    for step in range(num_steps):
        begin = 1000.0 + step * STEP_US
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": begin, "dur": STEP_US / 2},
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": "Optimizer.step#SGD.step",
                "pid": 1,
                "tid": 1,
                "ts": begin + STEP_US * 0.9,
                "dur": 100.0,
            },
        ]
    told = {} if rank is None else {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
    return json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 10**18, **told, "traceEvents": events})


class Libkineto:
    """One process's client. It takes its first request after `refuses` of them; then it writes at once.

    Args:
        daemon: the address that it asks.
        folder: of its own socket, None for an abstract one.
        pid: what it calls itself.
        job_id: its SLURM_JOB_ID.
        rank: in its traces.
        refuses: requests that come before its loop runs.
    """

    def __init__(
        self,
        daemon: str | bytes,
        folder: Path | None,
        *,
        pid: int | None = None,
        job_id: int = 0,
        rank: int | None = None,
        refuses: int = 0,
    ) -> None:
        self.pid = os.getpid() if pid is None else pid
        self.num_taken = 0
        self.obeys = True
        self._daemon = daemon
        self._job_id = job_id
        self._rank = rank
        self._refuses = refuses
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"dynoconfigclient{uuid.uuid4()}"
        self._socket.bind(f"\0{name}\0".encode() if folder is None else f"{folder}/{name}")
        self._socket.settimeout(2.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def close(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def start(self, interval: float) -> None:
        """Ask again and again."""
        self._interval = interval
        self._thread.start()

    def ask(self, *, accepts: bool = True) -> str:
        """Ask once, and do as told."""
        payload = struct.pack("<iiqii", 3 if accepts else 1, 2, self._job_id, self.pid, os.getppid())
        self._socket.sendto(struct.pack("<Q32s", len(payload), b"req") + payload, self._daemon)
        answer = self._socket.recv(1 << 16)
        size, kind = struct.unpack_from("<Q32s", answer)
        assert (size, kind.rstrip(b"\0")) == (len(answer) - 40, b"req")
        text = answer[40:].decode()
        if text and self.obeys:
            self._take(dict(line.split("=") for line in text.splitlines()))
        return text

    def register(self) -> int:
        """Say that it uses a GPU; how many of its job do."""
        payload = struct.pack("<iiq", 0, self.pid, self._job_id)
        self._socket.sendto(struct.pack("<Q32s", len(payload), b"ctxt") + payload, self._daemon)
        count: int = struct.unpack_from("<i", self._socket.recv(1 << 16), 40)[0]
        return count

    def _take(self, config: dict[str, str]) -> None:
        assert config["ACTIVITIES_DURATION_MSECS"] == "0"
        if self._refuses:
            self._refuses -= 1
            return
        self.num_taken += 1
        path = Path(config["ACTIVITIES_LOG_FILE"].replace(".json", f"_{self.pid}.json"))
        part = path.with_suffix(".json.tmp")
        part.write_text(trace_text(int(config["ACTIVITIES_ITERATIONS"]), rank=self._rank))
        part.rename(path)

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            with suppress(TimeoutError):  # asked anew, as libkineto does
                self.ask()
