"""The network in use is told with its cards and the reason, also where nothing is wrong."""

from __future__ import annotations

import pytest

from stepscope.analyzer.nccl import explain_nccl
from stepscope.core.documents.nccl import NetworkUse, SettingUse
from stepscope.core.documents.nccl_facts import (
    Cards,
    DirectMemory,
    Join,
    JoinSeconds,
    LogEvent,
    LogPlace,
    Network,
    NoInfiniBand,
    NoPeerAccess,
    RingPath,
    Setting,
    Shape,
)
from stepscope.core.hardware.health import Severity


def _at(host: str = "a", process: int = 1, line: int = 1) -> LogPlace:
    return LogPlace("log", line, f"{host}:{process}")


@pytest.mark.parametrize(
    ("around", "use"),
    [
        ([NoInfiniBand(_at()), Cards(_at(), "Socket", ("eth0:10.0.0.1", "eth1:10.0.0.2")), Network(_at(), "Socket")],
         NetworkUse("Socket", ["eth0", "eth1"], "no InfiniBand device", None, ["a"])),
        ([NoInfiniBand(_at(), "libibverbs.so cannot be opened"), Network(_at(), "Socket")],
         NetworkUse("Socket", [], "libibverbs.so cannot be opened", None, ["a"])),
        ([Setting(_at(), "NCCL_IB_DISABLE", "1"), NoInfiniBand(_at()), Network(_at(), "Socket")],
         NetworkUse("Socket", [], "NCCL_IB_DISABLE=1 set in the environment", None, ["a"])),
        # the interface over which ranks meet is the first of the same list
        ([Cards(_at(), "Bootstrap", ("ens7",)), Network(_at(), "Socket")],
         NetworkUse("Socket", ["ens7"], "the log does not say why no InfiniBand", None, ["a"])),
        ([Cards(_at(), "IB", ("mlx5_0:1/RoCE",)), DirectMemory(_at(), "mlx5_0", is_enabled=False),
          Network(_at(), "IB")],
         NetworkUse("IB", ["mlx5_0:1/RoCE"], "", False, ["a"])),
        ([DirectMemory(_at(), "mlx5_0", is_enabled=True), Network(_at(), "IBext_v8")],
         NetworkUse("IBext_v8", [], "", True, ["a"])),
        ([Network(_at(), "AWS Libfabric")], NetworkUse("AWS Libfabric", [], "", None, ["a"])),
        # a cut log
        ([RingPath(_at(), 0, 1, "NET/IB/0/GDRDMA")], NetworkUse("IB", [], "", None, ["a"])),
        # before 2.5
        ([Cards(_at(), "Socket", ("eth0:1",))],
         NetworkUse("Socket", ["eth0"], "the log does not say why no InfiniBand", None, ["a"])),
    ],
)  # fmt: skip
def test_the_network_and_why(around: list[LogEvent], use: NetworkUse) -> None:
    assert explain_nccl(around).networks == [use]


def test_machines_with_the_same_network_are_told_together() -> None:
    events = [Network(_at(host, process), "IB") for host in "ba" for process in range(2)]
    assert [one.machines for one in explain_nccl(events).networks] == [["a", "b"]]


@pytest.mark.parametrize("kind", ["Bootstrap", "Socket"])
def test_one_process_names_the_interfaces_of_its_machine(kind: str) -> None:
    events: list[LogEvent] = [
        Cards(_at("a"), kind, ("eth0",)),
        *(Network(_at(host, process), "Socket") for host in "ab" for process in range(2)),
    ]
    assert [(one.cards, one.machines) for one in explain_nccl(events).networks] == [(["eth0"], ["a"]), ([], ["b"])]


def test_one_process_tells_why_its_machine_has_no_infiniband() -> None:
    events: list[LogEvent] = [NoInfiniBand(_at("a", 2))]
    events += [Network(_at(host, process), "Socket") for host in "ab" for process in (1, 2)]
    assert [(one.why, one.machines) for one in explain_nccl(events).networks] == [
        ("no InfiniBand device", ["a"]),
        ("the log does not say why no InfiniBand", ["b"]),
    ]


def test_all_variables_are_facts_and_overrides_findings() -> None:
    events: list[LogEvent] = [
        Setting(_at(), "NCCL_SOCKET_IFNAME", "eth0"),
        Setting(_at("b"), "NCCL_SOCKET_IFNAME", "eth0"),
        Setting(_at("b", line=2), "NCCL_SOCKET_IFNAME", "eth1"),
        Setting(_at(line=3), "NCCL_TOPO_FILE", "/t.xml"),
    ]
    report = explain_nccl(events)
    assert report.settings == [
        SettingUse("NCCL_SOCKET_IFNAME", "eth0", "log", 1),
        SettingUse("NCCL_SOCKET_IFNAME", "eth1", "log", 2),
        SettingUse("NCCL_TOPO_FILE", "/t.xml", "log", 3),
    ]
    (finding,) = report.findings
    assert (finding.code, finding.severity, finding.line) == ("setting", Severity.INFO, 3)
    assert finding.message == (
        "NCCL_TOPO_FILE=/t.xml set in the environment: links and cards are read from this file, not from the machine"
    )


def _joins(*hosts: str, communicator: str = "0x1") -> list[LogEvent]:
    return [Join(_at(host, 1), communicator, rank, len(hosts), 0, is_complete=True) for rank, host in enumerate(hosts)]


def test_ranks_of_a_communicator_with_different_networks() -> None:
    events = [Network(_at("a"), "IB"), Network(_at("b"), "Socket"), *_joins("a", "b")]
    finding = explain_nccl(events).findings[0]
    assert (finding.code, finding.severity) == ("network_mismatch", Severity.CRITICAL)
    assert "NET/IB on a; NET/Socket on b" in finding.message


def test_jobs_of_different_networks_are_no_mismatch() -> None:
    events = [Network(_at("a"), "IB"), Network(_at("b"), "Socket"), *_joins("a"), *_joins("b", communicator="0x2")]
    assert explain_nccl(events).findings == []


@pytest.mark.parametrize(
    ("joins", "codes"),
    [(_joins("a", "b"), ["net_count_mismatch"]), ([*_joins("a"), *_joins("b", communicator="2")], [])],
)
def test_machines_of_one_job_with_different_numbers_of_cards(joins: list[LogEvent], codes: list[str]) -> None:
    """nccl#2428: the channels of the card that one machine lacks hang."""
    events: list[LogEvent] = [
        Cards(_at("a"), "IB", ("erdma_0:1/RoCE", "erdma_1:1/RoCE")),
        Cards(_at("b", line=7), "IB", ("erdma_0:1/RoCE",)),
        *(Network(_at(host), "IB") for host in "ab"),
    ]
    findings = explain_nccl([*events, *joins]).findings
    assert [finding.code for finding in findings] == codes
    assert all("1 on b; 2 on a" in finding.message and finding.line == 7 for finding in findings)


def test_gpus_that_the_driver_keeps_apart_are_the_reason_for_shared_memory() -> None:
    events = [*_joins("a", "a"), NoPeerAccess(_at(), 6, 7), RingPath(_at("a", 1), 0, 1, "SHM/direct")]
    assert explain_nccl(events).transports[0].why.startswith("the driver allows no P2P between these GPUs")


def _join_seconds(rank: int, total: float, **parts: float) -> JoinSeconds:
    return JoinSeconds(_at("a", rank, rank), rank, 4, total, parts)


def test_a_slow_start_is_told_by_its_longest_part() -> None:
    """nccl#1646: 55 s on B200s."""
    events: list[LogEvent] = [_join_seconds(rank, 54.0 + rank, kernels=52.0 + rank, topo=1.1) for rank in range(4)]
    report = explain_nccl(events)
    (finding,) = report.findings
    assert (finding.code, finding.ranks, finding.line) == ("slow_init", [3], 3)
    assert finding.message.startswith(
        "communicator 4 ranks: rank 3 took 57.0 s to join, 55.0 s of them kernels: loading"
    )
    assert [(one.init_seconds, one.init_parts) for one in report.communicators] == [
        (57.0, {"kernels": 55.0, "topo": 1.1})
    ]


def test_the_rank_that_came_last_is_the_one_that_did_not_wait() -> None:
    events: list[LogEvent] = [_join_seconds(rank, 61.0, bootstrap=0.5 if rank == 2 else 60.0) for rank in range(4)]
    (finding,) = explain_nccl(events).findings
    assert finding.message.endswith("rank 2 came last: look at what it did before")


def test_a_quick_start_is_no_finding() -> None:
    assert explain_nccl([_join_seconds(0, 9.9, bootstrap=9.0)]).findings == []


def test_ranks_whose_communicator_has_a_shape_have_all_begun() -> None:
    events: list[LogEvent] = [Join(_at(), "0x1", 0, 2, 0, is_complete=False), Shape(_at(), 0, 2, 1, 2)]
    assert explain_nccl(events).findings == []
