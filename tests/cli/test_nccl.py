"""`stepscope nccl`: tables and JSON document with the keys of the contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.cli import main

_LOG = """\
NCCL version 2.28.9+cuda13.0
nodeA:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
nodeA:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1
nodeA:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 commId 0xab - Init COMPLETE
nodeA:2:2 [1] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 commId 0xab - Init COMPLETE
nodeA:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["nccl", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_tables_and_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(_LOG)
    code, out, err = _run(capsys, str(log))
    assert (code, err) == (0, "")
    assert "SHM/direct" in out
    assert "1 way between ranks 0–1 over SHM, not P2P: NCCL_P2P_DISABLE=1 set in the environment" in out
    assert f"{log}:6" in out


def test_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(_LOG)
    code, out, _ = _run(capsys, str(log), "--json")
    told = json.loads(out)
    assert code == 0
    assert next(iter(told)) == "schema"
    assert told["schema"] == "stepscope.nccl/1"
    assert told["transports"] == [
        {
            "from": 0,
            "to": 1,
            "via": "SHM",
            "detail": "direct",
            "channels": 1,
            "expected": "P2P",
            "ok": False,
            "why": "NCCL_P2P_DISABLE=1 set in the environment",
        }
    ]
    assert [finding["code"] for finding in told["findings"]] == ["wrong_transport", "setting"]


def test_a_file_without_anything_of_nccl_s_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("loss 2.3\n")
    code, out, err = _run(capsys, str(tmp_path / "text"))
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
