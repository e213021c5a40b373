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


def test_a_version_alone_is_no_sign_that_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.log"
    log.write_text("NCCL version 2.24.3+cuda12.4\nhello\n")
    code, out, err = _run(capsys, str(log))
    assert (code, out.strip()) == (0, "NCCL      2.24.3+cuda12.4")
    assert "nothing could be checked: these files have only NCCL's version" in err
    told = json.loads(_run(capsys, str(log), "--json")[1])
    assert [notice["code"] for notice in told["warnings"]] == ["nothing_checked"]


def test_facts_are_printed_where_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "cudaDriverVersion 13000",
        "NCCL version 2.28.9+cuda13.0",
        "NCCL_SOCKET_IFNAME set by environment to eth0",
        "NET/IB : No device found.",
        "NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "Using network Socket",
        "ncclCommInitRank comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 commId 0xab - Init COMPLETE",
        "Init timings - ncclCommInitRank: rank 0 nranks 1 total 0.79 (kernels 0.53, bootstrap 0.21)",
    ]
    (tmp_path / "job.log").write_text("".join(f"a:1:1 [0] NCCL INFO {line}\n" for line in lines))
    code, out, err = _run(capsys, str(tmp_path))
    assert (code, err) == (0, "")
    assert out.splitlines()[:5] == [
        "NCCL      2.28.9+cuda13.0",
        "Driver    CUDA 13.0",
        "Machines  1: a, 1 process",
        "Network   NET/Socket over eth0: no InfiniBand device",
        "Settings  NCCL_SOCKET_IFNAME=eth0",
    ]
    assert "0.79 s (kernels 0.53)" in out
    assert out.endswith("nothing is wrong by these files\n")


def test_networks_of_different_machines_and_answers_of_ras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = [
        *("a:1:1 [0] NCCL INFO Using network IB", "a:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB"),
        "a:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        *("b:1:1 [0] NCCL INFO Using network AWS Libfabric", "NCCL version 2.26.2 compiled with CUDA 12.4"),
        *("Job summary", "      4          8            1         32       32"),
        "    0         2         4         8        32        32   RUNNING      OK",
    ]
    (tmp_path / "job.log").write_text("\n".join(log))
    _, out, _ = _run(capsys, str(tmp_path))
    assert "Network   NET/IB over mlx5_0:1/IB, with GPUDirect RDMA (on a)" in out
    assert "Network   AWS Libfabric (on b)" in out
    assert "RAS       NCCL 2.26.2; 32 GPUs on 4 nodes; 2 communicators of 32 ranks RUNNING, OK" in out


def test_a_benchmark_s_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = "  1048576  262144  float  sum  -1  203.2  5.16  9.68  0  207.2  5.06  9.49  0"
    (tmp_path / "job.log").write_text(
        f"# Collective test starting: all_reduce_perf\n{row}\n# Avg bus bandwidth : 9.6\n"
    )
    _, out, _ = _run(capsys, str(tmp_path))
    (line,) = [line for line in out.splitlines() if "all_reduce" in line]
    assert [" ".join(cell.split()) for cell in line.split("  ") if cell.strip()] == [
        *("all_reduce", "1: 1.0 MiB to 1.0 MiB", "9.68", "1.0 MiB", "9.60", "ok"),
    ]
    assert "bus GB/s" in out
