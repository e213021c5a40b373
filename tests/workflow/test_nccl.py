"""Every recorded NCCL file is read, and each log's finding is the one of its origin."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.workflow.nccl import read_nccl


@pytest.mark.parametrize(
    ("file", "codes", "said"),
    [
        ("deepspeed_breakdown_cpuadam_1635.log", ["cpu_optimizer"], "an optimizer on the CPU"),
        ("gb10_allgather_gdr0.log", ["no_gdr"], "without GPUDirect"),
        ("graph_h100_2nic_1197.log", ["shared_nic"], "2 GPUs share 1 network card of 25 GB/s"),
        ("h100x2_nvlink_ok.log", ["setting"], "NCCL_NVLS_ENABLE=0"),
        ("ib_gdr_2x8_hang_status4.log", ["transfer_failed", "setting", "setting"], "local protection error"),
        ("socket_4x1_efa_missing.log", ["wrong_transport"], "over NET/Socket"),
        ("watchdog_desync_pl20832.log", ["desync"], "rank 0 in _ALLGATHER_BASE 532341; ranks 1–2 in BROADCAST 532339"),
    ],
)
def test_recorded_logs(file: str, codes: list[str], said: str, shared_traces: Path) -> None:
    report = read_nccl([str(shared_traces / "diag/nccl_logs" / file)])
    assert [finding.code for finding in report.findings] == codes
    assert said in report.findings[0].message
    assert [one for one in report.warnings if one.code != "nothing_checked"] == []


def test_the_recorded_ways_over_nvlink_are_right(shared_traces: Path) -> None:
    report = read_nccl([str(shared_traces / "diag/nccl_logs/h100x2_nvlink_ok.log")])
    assert [(one.source, one.target, one.via, one.channels, one.ok) for one in report.transports] == [
        (0, 1, "P2P", 24, True),
        (1, 0, "P2P", 24, True),
    ]


@pytest.mark.parametrize("folder", ["inspector", "ras", "topo", "xpu_timer", "nccl_logs"])
def test_every_other_recorded_file_is_read(folder: str, shared_traces: Path) -> None:
    for file in sorted((shared_traces / "diag" / folder).iterdir()):
        if "normal_" in file.name or "single" in file.name:
            continue  # pages on which nothing is flagged
        report = read_nccl([str(file)])
        assert [one for one in report.warnings if one.code != "nothing_checked"] == [], file
        assert any((report.findings, report.bandwidths, report.devices, report.planned, report.transports)), file


def test_a_folder_is_read_as_one_job_and_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "nccl"
    folder.mkdir(parents=True)
    for rank in range(2):
        lines = [
            f"node{rank}:{rank}:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 "
            "busId 1 commId 0xab - Init START",
            f"node{rank}:{rank}:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
        ]
        (folder / f"rank{rank}.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (folder / "ras.json").write_text('{"communicators": 7}')
    (folder / "topo.xml").write_text("<system><cpu>")
    report = read_nccl([str(tmp_path / "run")])
    assert [(one.source, one.target, one.via, one.ok) for one in report.transports] == [(0, 1, "NET/Socket", False)]
    assert report.communicators[0].ranks == [0, 1]
    assert [notice.code for notice in report.warnings] == ["unusable_file", "unusable_file"]


@pytest.mark.parametrize(("name", "said"), [("nowhere", "does not exist"), ("text", "nothing of NCCL's in 1 file")])
def test_what_will_not_do_is_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("loss 2.3\n")
    with pytest.raises(DataError, match=said):
        read_nccl([str(tmp_path / name)])


def test_devices_and_pipes_are_no_files() -> None:
    with pytest.raises(DataError, match="is not a regular file"):
        read_nccl(["/dev/zero"])


def test_a_line_without_end_takes_no_room(tmp_path: Path) -> None:
    """100 MB of zeros in 100 kB."""
    with gzip.open(tmp_path / "log.gz", "wb") as packed:
        for _ in range(100):
            packed.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="nothing of NCCL's"):
            read_nccl([str(tmp_path)])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 << 20
