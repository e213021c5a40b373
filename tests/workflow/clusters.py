"""Clusters and stores of the tests: real ones on this machine, each in a process that ends with its pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]

DASK = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""
S3 = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def running(script: str, folder: Path, *, python_path: Path = _ROOT) -> Iterator[str]:
    """The address that the script printed; it ends when the context does.

    Args:
        script: one of the above.
        folder: where its file and logs go.
        python_path: what its workers import stepscope from.
    """
    file = folder / "cluster.py"
    file.write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(python_path)}
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=folder,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        assert address, (folder / "cluster.log").read_text()
        yield address
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def stepscope(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, whose settings are no one else's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DASK_", "RAY_"))}
    command = [sys.executable, "-m", "stepscope", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, cwd=_ROOT, env={**kept, **environment}
    )
