"""`stepscope hang`: terminal output, JSON document and exit codes of the contract."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main


def _write(folder: Path, rank: int, calls: int, *, is_open: bool) -> None:
    entries = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "state": "scheduled" if is_open and number == calls else "completed",
            "frames": [{"name": "train\x1b[31m", "filename": "train.py", "line": 7}],
        }
        for number in range(1, calls + 1)
    ]
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    content: dict[str, Any] = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}
    (folder / f"dump_{rank}").write_bytes(pickle.dumps(content, 2))


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    """A run directory whose rank 0 never called what rank 1 waits in."""
    folder = tmp_path / "run" / "flight"
    folder.mkdir(parents=True)
    _write(folder, 0, 4, is_open=False)
    _write(folder, 1, 5, is_open=True)
    return tmp_path / "run"


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["hang", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_answer_in_lines(hung: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, str(hung))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "HANG  host: rank 0 never called the collective that the others wait in: stuck on the host; 1 other waits",
        "  - rank 0: has called 1 collective fewer of default_pg than rank 1",
        "  Fix  look at what their Python does: py-spy dump --pid, or flight/rank<r>.stacks.txt of the run",
        "Confidence 95%: 2 dumps",
        "rank 0: no collective is open; the last was called from",
        "    train\\x1b[31m (train.py:7)",
        "rank 1: in all_reduce 5 of default_pg, waits for rank 0",
        "    train\\x1b[31m (train.py:7)",
    ]


def test_the_answer_as_a_document(hung: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (hung / "flight" / "dump_2").touch()
    code, out, err = _run(capsys, str(hung), "--json")
    told = json.loads(out)
    assert code == 0
    assert told["schema"] == "stepscope.hang/1"
    assert (told["verdict"]["cause"], told["verdict"]["kind"], told["verdict"]["ranks"]) == ("hang", "host", [0])
    assert [warning["code"] for warning in told["warnings"]] == ["unusable_file"]
    assert err.startswith("warning: ")


def test_what_would_run_something_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dump_0").write_bytes(pickle.dumps({"entries": print}))
    code, out, err = _run(capsys, str(tmp_path / "dump_0"))
    assert (code, out) == (3, "")
    assert "nothing of it was run" in err
    assert err.count("\n") == 1
