"""`stepscope memory`: terminal output, JSON document and exit codes of the contract."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.collectors.fake_allocator import Allocator


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Of a job that asked for more than there is."""
    allocator = Allocator()
    allocator.segment(0, 64 << 20)
    allocator.alloc(0, 60 << 20, "forward")
    allocator.fail(32 << 20, 0, "forward")
    path = tmp_path / "rank0-oom.pickle"
    path.write_bytes(allocator.pickled())
    return path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["memory", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_answer_in_lines(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, str(snapshot))
    assert (code, err) == (0, "")
    assert "OUT OF MEMORY  capacity, in forward" in out
    assert "asked for 32.00 MiB: 60.00 MiB allocated" in out
    assert "activations" in out
    assert "train (train.py:9)" in out
    assert "> recompute activations (checkpoint each layer)" in out


def test_the_answer_as_a_document(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, str(snapshot), "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["schema"], told["device"], told["peak_bytes"]) == ("stepscope.memory/1", 0, 60 << 20)
    assert told["at_peak"][0]["category"] == "activations"
    assert (told["oom"]["cause"], told["oom"]["phase"], told["oom"]["requested_bytes"]) == (
        "capacity",
        "forward",
        32 << 20,
    )


def test_several_snapshots_are_a_list(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, str(snapshot), str(snapshot), "--json")
    assert len(json.loads(out)) == 2


def test_what_would_run_something_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pickle").write_bytes(pickle.dumps({"segments": [print]}))
    code, out, err = _run(capsys, str(tmp_path / "a.pickle"))
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
