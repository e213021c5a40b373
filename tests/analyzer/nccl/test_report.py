"""Each wrong transport, error and mismatch in NCCL's output is found, with the reason of its origin."""

from __future__ import annotations

import pytest

from stepscope.analyzer.nccl import explain_nccl
from stepscope.analyzer.nccl.failures import transfer_error_words
from stepscope.analyzer.nccl.networks import _EFFECTS
from stepscope.core.documents.nccl import NcclReport
from stepscope.core.documents.nccl_facts import (
    CardEvent,
    Cards,
    Channels,
    DirectMemory,
    FailedTransfer,
    InspectorCall,
    Join,
    JoinSeconds,
    LogEvent,
    LogPlace,
    Network,
    NoInfiniBand,
    NoPlugin,
    RingPath,
    Setting,
    Shape,
    TimedOut,
    TopologyNode,
    TrainerTimes,
    Version,
    Warned,
)
from stepscope.core.documents.nccl_rank_status import HangFlags, RasCommunicator, RasRank, RasStatus
from stepscope.core.hardware.health import Severity


def _at(host: str = "a", process: int = 1, line: int = 1) -> LogPlace:
    return LogPlace("log", line, f"{host}:{process}")


def _joined(hosts: list[str]) -> list[LogEvent]:
    """One rank a host's process: they join a communicator."""
    return [Join(_at(host, rank), "0xab", rank, len(hosts), 0, is_complete=True) for rank, host in enumerate(hosts)]


def _codes(report: NcclReport) -> list[str]:
    return [finding.code for finding in report.findings]


def test_communicators_are_put_together_from_all_ranks_lines() -> None:
    events: list[LogEvent] = [
        Network(_at("a", 0), "IB"),
        Join(_at("a", 0), "0xab", 0, 2, 0, is_complete=False),
        Join(_at("b", 1), "0xab", 1, 2, 0, is_complete=False),
        Shape(_at("a", 0), 0, 2, 2, 1),
        Channels(_at("a", 0), 16, 8),
        Join(_at("a", 0), "0xab", 0, 2, 0, is_complete=True),
        JoinSeconds(_at("a", 0), 0, 2, 1.5),
    ]
    (one,) = explain_nccl(events).communicators
    assert (one.id, one.num_ranks, one.ranks, one.joined) == ("0xab", 2, [0, 1], [0])
    assert (one.num_nodes, one.channels, one.nvls_channels, one.network, one.init_seconds) == (2, 16, 8, "IB", 1.5)


def test_ways_inside_a_node_and_between_nodes_that_are_as_they_should_be() -> None:
    events = [
        *_joined(["a", "a", "b"]),
        *[RingPath(_at("a", 0), 0, 1, "P2P/CUMEM")] * 4,
        RingPath(_at("a", 1), 1, 2, "NET/IB/0(8)/GDRDMA"),
        RingPath(_at("b", 2), 1, 2, "NET/IB/0/GDRDMA"),
    ]
    report = explain_nccl(events)
    assert [(one.source, one.target, one.via, one.detail, one.channels, one.ok) for one in report.transports] == [
        (0, 1, "P2P", "CUMEM", 4, True),
        (1, 2, "NET/IB", "GDRDMA", 1, True),
    ]
    assert report.findings == []


@pytest.mark.parametrize(
    ("around", "why"),
    [
        ([Setting(_at(), "NCCL_IB_DISABLE", "1"), NoInfiniBand(_at())], "NCCL_IB_DISABLE=1 set in the environment"),
        ([Setting(_at(), "NCCL_NET", "Socket")], "NCCL_NET=Socket set in the environment"),
        ([NoInfiniBand(_at()), Cards(_at(), "Socket", ("bond0",))], "NCCL found no InfiniBand or RoCE card:"),
        ([NoPlugin(_at(), "libnccl-net.so")], "the plugin libnccl-net.so was not found"),
        ([], "the log does not say"),
    ],
)
def test_sockets_between_nodes_with_the_reason(around: list[LogEvent], why: str) -> None:
    """AReaL#639: a 1 GB all-reduce takes seven times as long."""
    report = explain_nccl([*around, *_joined(["a", "b"]), RingPath(_at("a", 0, 9), 0, 1, "NET/Socket/0")])
    (way,) = report.transports
    assert (way.ok, way.expected) == (False, "a network card with GDRDMA")
    assert way.why.startswith(why)
    finding = report.findings[0]
    assert (finding.code, finding.severity, finding.line, finding.ranks) == (
        "wrong_transport",
        Severity.CRITICAL,
        9,
        [0, 1],
    )


@pytest.mark.parametrize(
    ("around", "via", "why"),
    [
        ([Setting(_at(), "NCCL_P2P_DISABLE", "1")], "SHM/direct/direct", "NCCL_P2P_DISABLE=1 set in the environment"),
        ([Setting(_at(), "NCCL_P2P_LEVEL", "NVL")], "SHM/direct", "NCCL_P2P_LEVEL=NVL set in the environment"),
        ([], "SHM/direct", "no peer access"),
        ([], "P2P/indirect/2", "the GPUs reach each other through a third one"),
        ([Setting(_at(), "NCCL_SHM_DISABLE", "1")], "NET/Socket/0", "NCCL_SHM_DISABLE=1 set in the environment"),
        ([Setting(_at(), "NCCL_P2P_DISABLE", "0")], "P2P/IPC", ""),
    ],
)
def test_ways_inside_a_node_with_the_reason(around: list[LogEvent], via: str, why: str) -> None:
    (way,) = explain_nccl([*around, *_joined(["a", "a"]), RingPath(_at("a", 0), 0, 1, via)]).transports
    assert way.expected == "P2P"
    assert way.ok is (not why)
    assert way.why.startswith(why)


@pytest.mark.parametrize(
    ("around", "why"),
    [
        ([Setting(_at(), "NCCL_NET_GDR_LEVEL", "0")], "NCCL_NET_GDR_LEVEL=0"),  # nccl-tests#252
        ([DirectMemory(_at(), "mlx5_0", is_enabled=False)], "disabled for mlx5_0"),
        ([], "too far apart"),  # nccl#489
    ],
)
def test_cards_that_do_not_read_gpu_memory(around: list[LogEvent], why: str) -> None:
    report = explain_nccl([*around, *_joined(["a", "b"]), RingPath(_at("a", 0), 0, 1, "NET/IB/0")])
    assert why in report.transports[0].why
    assert report.findings[0].severity is Severity.WARNING


def test_another_network_s_own_way_is_not_judged() -> None:
    report = explain_nccl([*_joined(["a", "b"]), RingPath(_at("a", 0), 0, 1, "NET/AWS Libfabric/0")])
    assert report.transports[0].ok


@pytest.mark.parametrize(
    ("status", "vendor", "said"),
    [
        (12, 129, "retries exceeded"),  # nccl#426, pytorch#81628
        (5, 249, "work flushed: the queue pair had failed before"),  # nccl#1405
        (4, 81, "local protection error"),
        (99, 1, "unknown error"),
    ],
)
def test_errors_of_cards_in_words(status: int, vendor: int, said: str) -> None:
    assert transfer_error_words(status, vendor).startswith(said)
    report = explain_nccl([FailedTransfer(_at(), "10.0.0.2<1>", status, vendor, "mlx5_0")] * 3)
    assert _codes(report) == ["transfer_failed"]
    assert f"(status {status}, vendor error {vendor})" in report.findings[0].message


def test_ports_that_flap() -> None:
    assert _codes(explain_nccl([CardEvent(_at(), "port error")])) == ["port_event"]


def _timed_out(*ranks: tuple[int, int, str]) -> list[LogEvent]:
    return [TimedOut(LogPlace("log", 1), rank, sequence, operation, 600_000) for rank, sequence, operation in ranks]


@pytest.mark.parametrize(
    ("events", "code", "ranks"),
    [
        # pytorch#141069: rank 0's data ended, and it is silent
        (_timed_out((1, 19, "ALLREDUCE"), (2, 19, "ALLREDUCE"), (3, 19, "ALLREDUCE")), "silent_rank", [0]),
        # pytorch-lightning#20832
        (_timed_out((2, 39, "BROADCAST"), (1, 39, "BROADCAST"), (0, 41, "_ALLGATHER_BASE")), "desync", [0]),
        # pytorch#118369
        (_timed_out((0, 96117, "ALLREDUCE"), (7, 64088, "ALLREDUCE")), "desync", [0, 7]),
        # BasicSR#737: all alike, nobody is to blame
        (_timed_out((0, 808, "ALLREDUCE"), (1, 808, "ALLREDUCE"), (2, 808, "ALLREDUCE")), "timeout", [0, 1, 2]),
    ],
)
def test_what_timeouts_tell(events: list[LogEvent], code: str, ranks: list[int]) -> None:
    (finding,) = explain_nccl(events).findings
    assert (finding.code, finding.ranks) == (code, ranks)


def test_a_trainer_that_waits_for_its_optimizer_on_the_cpu() -> None:
    """DeepSpeed#1635."""
    parts = {"forward": 376.6, "backward": 864.56, "backward_allreduce": 57.62, "step": 22880.87}
    (finding,) = explain_nccl([TrainerTimes(LogPlace("log", 3), parts)]).findings
    assert finding.code == "cpu_optimizer"
    assert "22,881 ms" in finding.message


def test_gpus_that_share_a_card() -> None:
    """nccl#1197."""
    tree = [(0, "CPU"), (1, "PCI"), (2, "GPU"), (2, "GPU"), (2, "NIC"), (3, "NET")]
    tree += [(1, "PCI"), (2, "GPU"), (2, "NIC"), (3, "NET")]
    events = [
        TopologyNode(LogPlace("log", line), depth, "NET" if kind == "NET" else "PCI", 24.0, kind, f"{line}")
        for line, (depth, kind) in enumerate(tree)
    ]
    report = explain_nccl(events)
    (finding,) = report.findings
    assert (finding.code, finding.line) == ("shared_nic", 1)
    assert finding.message.startswith("2 GPUs share 1 network card of 24 GB/s behind one switch")
    assert [(one.num_gpus, one.num_network_cards, one.gpu_link_gbs) for one in report.devices] == [(3, 2, 24.0)]


def test_versions_that_differ() -> None:
    versions: list[LogEvent] = [Version(_at(), "2.27.3"), Version(_at("b"), "2.28.9")]
    assert _codes(explain_nccl(versions)) == ["version_mismatch"]


@pytest.mark.parametrize(
    ("communicators", "severities"),
    [([], [Severity.WARNING]), (["0x1", "0x1"], [Severity.CRITICAL]), (["0x1", "0x2"], [])],
)
def test_versions_of_one_communicator_or_of_different_jobs(
    communicators: list[str], severities: list[Severity]
) -> None:
    joins = [
        Join(_at(host), name, rank, 2, 0, is_complete=True)
        for rank, (host, name) in enumerate(zip("ab", communicators, strict=False))
    ]
    findings = explain_nccl([Version(_at(), "2.27.3"), Version(_at("b"), "2.28.9"), *joins]).findings
    assert [one.severity for one in findings if one.code == "version_mismatch"] == severities


def test_harmful_settings_are_said_once_and_the_worst_finding_comes_first() -> None:
    events: list[LogEvent] = [
        *[Setting(_at(), "NCCL_ALGO", "Ring")] * 3,
        Setting(_at(), "NCCL_DEBUG", "INFO"),
        Warned(_at(), "odd"),
    ]
    assert _codes(explain_nccl(events)) == ["nccl_warning", "setting"]


@pytest.mark.parametrize("value", ["0", "1", "2"])
def test_a_setting_is_said_with_what_follows_from_its_value(value: str) -> None:
    found = explain_nccl([Setting(_at(), "NCCL_NVLS_ENABLE", value)]).findings
    off = (
        "NCCL_NVLS_ENABLE=0 set in the environment: NVSwitches do not sum up: large all-reduces within a node get less"
    )
    assert [finding.message for finding in found] == ([off] if value == "0" else [])


def test_what_follows_from_a_setting_is_no_open_question() -> None:
    assert not [name for name, (follows, _) in _EFFECTS.items() if follows.startswith(("whether", "if", "how"))]


def test_who_has_not_begun_to_join_is_named() -> None:
    events = [Join(_at("a", rank), "0xab", rank, 4, 0, is_complete=False) for rank in (0, 1, 3)]
    (finding,) = explain_nccl(events).findings
    assert (finding.code, finding.ranks) == ("not_joined", [2])
    assert "rank 2 has not begun to" in finding.message


def test_a_damaged_number_of_ranks_takes_no_time() -> None:
    events = [Join(_at("a", rank), "0xab", rank, 10**15, 0, is_complete=False) for rank in range(3)]
    assert explain_nccl(events).findings == []


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([Version(_at(), "2.24.3")], "these files have only NCCL's version; run the job with NCCL_DEBUG=INFO"),
        ([Version(_at(), "2.24.3"), Setting(_at(), "NCCL_P2P_DISABLE", "1")], "only NCCL's version, settings; run"),
        ([TrainerTimes(_at(), {"forward": 1.0})], "only lines of other programs; run"),
        ([Version(_at(), "2.24.3"), Join(_at(), "0xab", 0, 1, 0, is_complete=True)], ""),
        ([Warned(_at(), "Call to ibv_modify_qp failed")], ""),
    ],
)
def test_files_in_which_nothing_can_be_checked(events: list[LogEvent], said: str) -> None:
    warnings = explain_nccl(events).warnings
    assert [notice.code for notice in warnings] == (["nothing_checked"] if said else [])
    assert all(said in notice.message for notice in warnings)


def test_ras_dead_silent_and_behind() -> None:
    ranks = tuple(RasRank(rank, "a", rank, {"AllReduce": 9 - (rank == 2)}) for rank in range(3))
    missing = (RasRank(3, "b", 3, is_unresponsive=True), RasRank(4, "b", 4, is_unresponsive=True, is_dead=True))
    report = explain_nccl([], statuses=[RasStatus("ras", (RasCommunicator("0x1", 5, ranks, missing),))])
    assert [(finding.code, finding.ranks) for finding in report.findings] == [
        ("ras_missing", [4]),
        ("ras_missing", [3]),
        ("ras_mismatch", [2]),
    ]
    assert report.findings[1].message.endswith("rank 3 without an answer: look at its host first")
    assert "rank 2 has launched fewer collectives" in report.findings[2].message


def test_hang_flags_are_a_hang_where_all_ranks_have_one() -> None:
    report = explain_nccl(
        [], pages=[HangFlags("all", (0, 1), ()), HangFlags("some", (0,), (1,)), HangFlags("no", (), (0,))]
    )
    assert [(finding.code, finding.ranks) for finding in report.findings] == [("hang", [0, 1]), ("hang_flag", [0])]


def test_the_bandwidth_of_a_call_is_that_of_its_last_rank() -> None:
    """Who comes first waits, and would show the network slower than it is."""
    calls = [
        InspectorCall("c", rank, 2, "AllReduce", number, 4096, "4,096 B", microseconds, 4096 / microseconds)
        for number in range(5)
        for rank, microseconds in ((0, 100.0), (1, 400.0))
    ]
    (row,) = explain_nccl([], calls).bandwidths
    assert (row.count, row.bus_bandwidth_gbs, row.last_arriver, row.last_share) == (5, 40.96, 0, 1.0)


def test_timeouts_of_different_groups_are_no_desync() -> None:
    """Tensor-parallel groups count for themselves; the group's name is said the second time only."""
    events = []
    for rank, number, group in ((0, 50, "7(tp)"), (1, 50, "7(tp)"), (2, 48, "8(tp)"), (3, 48, "8(tp)")):
        events += [TimedOut(LogPlace("log", 1), rank, number, "ALLREDUCE", 600, named) for named in (None, group)]
    findings = explain_nccl(events).findings
    assert [(one.code, one.ranks) for one in findings] == [("timeout", [0, 1]), ("timeout", [2, 3])]


def test_ranks_whose_logs_are_not_here_are_not_said_to_be_silent() -> None:
    """The log of the second node of two."""
    (finding,) = explain_nccl(_timed_out(*[(rank, 19, "ALLREDUCE") for rank in range(8, 16)])).findings
    assert (finding.code, finding.ranks) == ("timeout", list(range(8, 16)))


@pytest.mark.parametrize(("name", "way"), [("NCCL_P2P_LEVEL", "SHM"), ("NCCL_NET_GDR_LEVEL", "NET/IB/0")])
def test_a_level_that_forbids_nothing_is_no_reason(name: str, way: str) -> None:
    hosts = ["a", "a" if way == "SHM" else "b"]
    report = explain_nccl([Setting(_at(), name, "SYS"), *_joined(hosts), RingPath(_at("a", 0), 0, 1, way)])
    assert name not in report.transports[0].why
    assert _codes(report) == ["wrong_transport"]


def test_nvlink_between_nodes_is_as_it_should_be() -> None:
    report = explain_nccl([*_joined(["a", "b"]), RingPath(_at("a", 0), 0, 1, "P2P/MNNVL")])
    assert [(one.expected, one.ok) for one in report.transports] == [("P2P", True)]


def test_hosts_of_one_name_are_told_apart_by_the_number_of_nodes() -> None:
    """Containers may all be called alike."""
    shape = Shape(_at("box", 0), 0, 2, 2, 1)
    report = explain_nccl([*_joined(["box", "box"]), shape, RingPath(_at("box", 0), 0, 1, "NET/IB/0/GDRDMA")])
    assert [one.ok for one in report.transports] == [True]
    one_node = Shape(_at("pod-1", 0), 0, 2, 1, 2)
    report = explain_nccl([*_joined(["pod-1", "pod-2"]), one_node, RingPath(_at("pod-1", 0), 0, 1, "NET/Socket/0")])
    assert [(one.expected, one.ok) for one in report.transports] == [("P2P", False)]


def test_a_plugin_s_infiniband_is_judged_as_nccl_s_own() -> None:
    report = explain_nccl([*_joined(["a", "b"]), RingPath(_at("a", 0), 0, 1, "NET/IBext_v8/0")])
    assert [one.ok for one in report.transports] == [False]


def test_a_port_that_flaps_is_said_once_and_what_is_harmless_is_not() -> None:
    events = [CardEvent(_at(), event) for event in ("port error", "port error", "client reregistration", "port active")]
    assert _codes(explain_nccl(events)) == ["port_event"]
