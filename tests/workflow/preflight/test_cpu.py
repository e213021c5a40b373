"""The code that measures GPUs runs on the CPU, with torch and gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from stepscope.core.documents.machine_checks import DTYPES

_COMMAND = [sys.executable, "-m", "stepscope", "preflight"]


def test_two_processes_on_the_cpu(tmp_path: Path) -> None:
    junit = tmp_path / "checks.xml"
    command = [*_COMMAND, "--device", "cpu", "--quick", "--json", "--junit", str(junit)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["schema"] == "stepscope.preflight/1"
    assert document["warnings"] == []
    assert [gpu["index"] for gpu in document["gpus"]] == [0, 1]
    outcomes: dict[str, set[str]] = {}
    for check in document["checks"]:
        outcomes.setdefault(check["check"], set()).add(check["outcome"])
    for name in ("memory_bandwidth", "matmul_bfloat16", "matmul_float32", "all_reduce"):
        assert outcomes[name] <= {"pass", "warn"}  # a warning where the machine is busy with other things
    for dtype in DTYPES:
        assert outcomes[f"results_{dtype}"] == ({"skipped"} if dtype in ("tfloat32", "float8") else {"pass"})
    for name in ("driver", "host_to_device", "device_to_host", "peer_copy"):
        assert outcomes[name] == {"skipped"}
    suite = Xml.parse(junit).find("testsuite")
    assert suite is not None
    assert suite.get("tests") == str(len(document["checks"]))
    assert suite.get("failures") == "0"


@pytest.mark.gpu
def test_the_gpus_of_this_machine_pass() -> None:
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("no GPU here")
    ended = subprocess.run([*_COMMAND, "--quick", "--json"], capture_output=True, text=True, timeout=110)
    document = json.loads(ended.stdout)
    measured = {check["check"] for check in document["checks"] if check["value"] is not None}
    assert {"memory_bandwidth", "matmul_bfloat16", "results_bfloat16", "host_to_device"} <= measured
    failed = [check for check in document["checks"] if check["outcome"] == "fail"]
    assert failed == []
    assert ended.returncode == 0
