"""Traces are read from a real S3 server, and its refusals are reported in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.clusters import S3, running, stepscope
from tests.workflow.written_traces import write_trace

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto", reason="moto is not installed")

NUM_RANKS = 12

_FILL = """
import sys
import fsspec
store = fsspec.filesystem("s3")
store.mkdir("bucket")
store.put(sys.argv[1] + "/", "bucket/run/", recursive=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """How to reach a server that holds a run of many ranks."""
    folder = tmp_path_factory.mktemp("s3")
    for rank in range(NUM_RANKS):
        name = f"rank{rank}.json.gz" if rank % 2 else f"rank{rank}.json"
        write_trace(folder / "job" / name, rank, world_size=NUM_RANKS)
    (folder / "job" / "notes.txt").write_text("no trace")
    with running(S3, folder) as endpoint:
        settings = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        settings |= {"AWS_EC2_METADATA_DISABLED": "true", "JOB": str(folder / "job")}
        filled = _python(_FILL, str(folder / "job"), settings)
        assert filled.returncode == 0, filled.stderr
        yield settings


def _python(code: str, argument: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, argument], capture_output=True, text=True, env={**os.environ, **settings}
    )


def test_a_prefix_of_many_ranks_is_analysed_as_the_folder_is(server: dict[str, str]) -> None:
    here = stepscope("analyze", server["JOB"], "--json")
    there = stepscope("analyze", "s3://bucket/run", "--json", "--workers", "2", **server)
    assert (there.returncode, there.stderr) == (0, "")
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert json.loads(there.stdout)["job"]["ranks"] == list(range(NUM_RANKS))


def _refused(done: subprocess.CompletedProcess[str], exit_code: int, *words: str) -> None:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (exit_code, "", 1), done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize("url", ["s3://bucket/run/absent.json.gz", "s3://nobucket/run"])
def test_what_is_not_there_is_one_line(url: str, server: dict[str, str]) -> None:
    _refused(stepscope("analyze", url, **server), 3, url, "does not exist")


def test_a_missing_key_is_a_warning_beside_others(server: dict[str, str]) -> None:
    done = stepscope("analyze", "s3://bucket/run", "s3://bucket/run/absent.json", "--json", **server)
    assert done.returncode == 0
    assert [notice["code"] for notice in json.loads(done.stdout)["warnings"]] == ["unusable_file"]


def test_missing_credentials_are_one_line(server: dict[str, str], tmp_path: Path) -> None:
    without = {name: value for name, value in server.items() if "KEY" not in name}
    done = stepscope("analyze", "s3://bucket/run", **without, HOME=str(tmp_path))
    _refused(done, 4, "s3://bucket/run", "credentials", "documentation: Many ranks")


def test_a_server_that_is_not_there_is_one_line(server: dict[str, str]) -> None:
    elsewhere = {**server, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    elsewhere["FSSPEC_S3_CONFIG_KWARGS"] = '{"retries": {"total_max_attempts": 1}}'
    _refused(stepscope("analyze", "s3://bucket/run", **elsewhere), 4, "s3://bucket/run", "endpoint")


def test_a_missing_driver_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "s3fs.py").write_text("raise ModuleNotFoundError('No module named s3fs', name='s3fs')")
    done = stepscope("analyze", "s3://bucket/run", PYTHONPATH=str(tmp_path))
    _refused(done, 3, "s3fs", 'pip install "stepscope[s3]"')
