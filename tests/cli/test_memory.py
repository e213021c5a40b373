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


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A snapshot of the same job, with more."""
    allocator = Allocator()
    allocator.segment(0, 64 << 20)
    allocator.alloc(0, 60 << 20, "forward")
    allocator.alloc(61 << 20, 2 << 20, "own")
    path = tmp_path / "later.pickle"
    path.write_bytes(allocator.pickled())
    return path


def test_two_snapshots_are_compared(snapshot: Path, later: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "--compare", str(snapshot), str(later))
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:2] == [f"first {snapshot}: GPU 0", f"second {later}: GPU 0"]
    assert "allocated at the end 60.0 MiB 62.0 MiB +2.0 MiB" in lines
    assert "activations 0 B 2.0 MiB +2.0 MiB 0 B 2.0 MiB +2.0 MiB keep (train.py:20)" in lines


def test_the_comparison_as_a_document(snapshot: Path, later: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, str(snapshot), str(later), "--compare", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "stepscope.memory-comparison/1"
    assert document["allocated"] == {"first": 60 << 20, "second": 62 << 20}
    assert [holder["place"] for holder in document["holders"]] == ["keep (train.py:20)"]


def test_a_comparison_takes_two(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "--compare", str(snapshot))
    assert (code, out) == (2, "")
    assert "--compare takes two snapshots, not 1" in err


@pytest.mark.usefixtures("snapshot")
def test_a_folder_of_several_snapshots_is_not_one_side(
    later: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = _run(capsys, "--compare", str(tmp_path), str(later))
    assert code == 3
    assert "holds 2 memory snapshots: rank0-oom.pickle, later.pickle; give one of them" in err
    assert err.count("\n") == 1


def test_private_pools_and_the_kind_of_job_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allocator = Allocator()
    allocator.segment(0, 64 << 20, (1, 0))
    allocator.segment(1 << 30, 64 << 20)
    allocator.alloc(1 << 30, 60 << 20, "no_grad")
    (tmp_path / "a.pickle").write_bytes(allocator.pickled())
    out = " ".join(_run(capsys, str(tmp_path / "a.pickle"))[1].split())
    assert "private pool 1, 0 (CUDA graphs or MemPool): 64.0 MiB reserved in 1 segment, 64.0 MiB of it unused" in out
    assert "inference: no backward pass and no optimizer is in the snapshot, so no advice for training is given" in out
