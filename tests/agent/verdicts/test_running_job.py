"""A real job beside a real agent: its loader gets slow, the live verdict says so, and the webhook is called once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.verdicts.test_notifier import Endpoint

pytest.importorskip("torch")

_ROOT = Path(__file__).resolve().parents[3]
_SECONDS = 3.0


def _wait_until(is_so: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)


@contextmanager
def _agent(place: Path, folder: Path, webhook: str) -> Iterator[str]:
    """The agent as a process; its address."""
    settings = {"WEBHOOK": webhook, "SETTLE_SECONDS": "1.0"}
    command = ["agent", "run", "--listen", "127.0.0.1:0", "--socket", str(place), "--state-dir", str(folder / "state")]
    with subprocess.Popen(
        [sys.executable, "-m", "stepscope", *command],
        env=os.environ | {f"STEPSCOPE_AGENT__VERDICTS__{name}": value for name, value in settings.items()},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            line = ""
            while not (address := re.search(r"(http://\S+)/metrics", line)):
                line = process.stderr.readline()
                assert line, "the agent has ended"
            yield address[1]
        finally:
            process.kill()


@contextmanager
def _training(folder: Path, place: Path) -> Iterator[None]:
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "STEPSCOPE_AGENT_SOCKET": str(place),
        "STEPSCOPE_LIVE_VERDICT": str(_SECONDS),
        "PYTHONPATH": str(_ROOT),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).with_name("loading_training.py")), str(folder)]
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]
    try:
        yield
        (folder / "stop").touch()
        assert [rank.wait(60) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _verdicts(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/node", timeout=10) as answer:
        return [one["verdict"] for one in json.load(answer)["verdicts"]]


def test_the_agent_loads_no_analysis_of_runs() -> None:
    program = (
        "import sys, stepscope.agent.service, stepscope.agent.verdicts.notifier\n"
        "heavy = {'numpy', 'stepscope.analyzer.job', 'stepscope.workflow.analyze', 'urllib.request'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_loader_that_gets_slow(tmp_path: Path, place: Path) -> None:
    with ExitStack() as stack:
        endpoint = stack.enter_context(Endpoint())
        url = stack.enter_context(_agent(place, tmp_path, endpoint.url))
        with _training(tmp_path, place):
            _wait_until(lambda: bool(_verdicts(url)), 240)
            (first,) = _verdicts(url)
            assert first["run"] == "r"
            assert first["cause"] != "data_loading"
            (tmp_path / "slow").touch()
            _wait_until(lambda: _verdicts(url)[0]["cause"] == "data_loading", 240)
            _wait_until(lambda: bool(endpoint.bodies), 240)
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                page = answer.read().decode()
            (line,) = re.findall(r"^stepscope_training_bottleneck_ratio\{(.*)\} (\S+)$", page, re.MULTILINE)
            assert 'cause="data_loading"' in line[0]
            assert 0.3 < float(line[1]) <= 1.0
            time.sleep(3 * _SECONDS)  # further verdicts say the same
        _wait_until(lambda: not _verdicts(url), 30)
        assert len(endpoint.bodies) == 1
    change = endpoint.bodies[0]
    assert (change["schema"], change["uid"]) == ("stepscope.verdict-change/1", os.getuid())
    assert (change["verdict"]["run"], change["verdict"]["cause"]) == ("r", "data_loading")
