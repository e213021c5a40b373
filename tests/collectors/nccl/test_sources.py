"""Inspector files, RAS answers, topologies and xpu_timer pages are read, damaged ones too."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.nccl.inspector import read_inspector
from stepscope.collectors.nccl.rank_status import read_ras, read_xpu_timer
from stepscope.collectors.nccl.topology import read_topology
from stepscope.core.documents.nccl_facts import InspectorCall, PlannedWay, TopologyNode
from stepscope.core.documents.nccl_rank_status import HangFlags, RasGroup
from stepscope.core.errors import DataError


def _call(rank: int, number: int, microseconds: float = 100.0, **more: object) -> str:
    perf = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": 4096,
        "coll_exec_time_us": microseconds,
        "coll_busbw_gbs": 4096 / microseconds,
        "coll_algo": "RING",
    }
    return json.dumps({"header": {"id": "0xab", "rank": rank, "n_ranks": 2}, "metadata": {}, "coll_perf": perf | more})


def test_a_call_of_the_inspector() -> None:
    assert list(read_inspector([_call(1, 7)])) == [
        InspectorCall("0xab", 1, 2, "AllReduce", 7, 4096, "4,096 B", 100.0, 40.96)
    ]


def test_lines_that_cannot_be_read_are_counted_and_others_passed_over() -> None:
    lines = [_call(0, 1)[:-9], "", "# HELP", '{"header": {}, "coll_perf": {}}', "text"]
    assert list(read_inspector(lines)) == [None, None]


def test_a_page_of_the_inspector() -> None:
    line = 'nccl_bus_bandwidth_gbs{comm_name="DP 0",nranks="4",collective="AllReduce",message_size="4-5GB"} 678.2'
    assert list(read_inspector([line, line.replace("678.2", "fast")])) == [
        InspectorCall("DP 0", None, 4, "AllReduce", None, None, "4-5GB", 0.0, 678.2),
        None,
    ]


_RAS_TEXT = """
  Communicators... (0.00s)
  #0-0 (27a0) MISMATCH
    Communicator ranks have different collective operation counts
    2 ranks have launched up to operation 6650
    1 rank has launched up to operation 6649
    Rank 7 -- GPU 0 managed by process 483072 on node 10.0.0.210
  #0-1 (cf26) INCOMPLETE
    Missing communicator data from 3 ranks
    The missing ranks: 21, 23-24
  DEAD
    Process 3487984 on node 10.0.0.213 managing GPU 5
"""


def test_ras_as_text() -> None:
    status = read_ras(_RAS_TEXT, file="ras")
    first, second = status.communicators
    assert (first.id, first.groups) == (
        "27a0",
        (
            RasGroup(2, "launched up to operation 6650", "", 6650),
            RasGroup(1, "launched up to operation 6649", "", 6649, (7,)),
        ),
    )
    assert [rank.rank for rank in second.missing] == [21, 23, 24]
    assert status.dead == ("Process 3487984 on node 10.0.0.213 managing GPU 5",)


def test_a_summary_of_unequal_nodes() -> None:
    text = """\
Job summary
===========
  Nodes  Processes         GPUs
          per node  per process
      1          8            1
      1          2            1

  Nodes  Processes         GPUs
(total)    (total)      (total)
      2         10           12
"""
    status = read_ras(text, file="ras")
    assert (status.num_nodes, status.num_gpus) == (2, 12)


def test_ras_as_json() -> None:
    rank = {"rank": 0, "host": "a", "pid": 1, "collective_counts": {"AllReduce": 4}}
    gone = {"rank": 1, "host": "b", "pid": 2, "status": {"unresponsive": True, "considered_dead": True}}
    text = json.dumps({"communicators": [{"hash": "0x1", "size": 2, "ranks": [rank], "missing_ranks": [gone]}]})
    (one,) = read_ras(text, file="ras").communicators
    assert (one.size, one.ranks[0].counts, one.missing[0].is_dead) == (2, {"AllReduce": 4}, True)


@pytest.mark.parametrize("text", ['{"communicators": 7}', '{"communicators": [{}]}', '{"communicators"', '{"a": 1}'])
def test_json_that_is_no_answer_of_ras_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="is not an answer of NCCL's RAS"):
        read_ras(text, file="ras")


_TOPOLOGY = """<!-- words --><system version="1"><cpu numaid="0"><pci busid="a" class="0x060400" link_speed="16 GT/s"
link_width="16"><pci busid="b" class="0x030200" link_speed="16 GT/s" link_width="16"/><pci busid="c" class="0x020700"/>
</pci><pci busid="d"><gpu dev="0"/></pci><pci busid="e"><nic/></pci></cpu></system>"""


def test_a_topology_is_read_as_a_tree() -> None:
    nodes = [node for node in read_topology(_TOPOLOGY, file="topo") if isinstance(node, TopologyNode)]
    assert [(node.depth, node.kind, node.name, node.gbs) for node in nodes] == [
        (0, "CPU", "0", 0.0),
        (1, "PCI", "a", 32.0),
        (2, "GPU", "b", 32.0),
        (2, "NIC", "c", 0.0),
        (1, "GPU", "d", 0.0),
        (1, "NIC", "e", 0.0),
    ]


def test_graphs_are_read_as_planned_ways() -> None:
    text = '<graphs><graph pattern="4" speedintra="12" speedinter="x" typeintra="SYS"><channel/></graph></graphs>'
    (way,) = read_topology(text, file="graph")
    assert isinstance(way, PlannedWay)
    assert (way.pattern, way.num_channels, way.inside_gbs, way.between_gbs, way.inside) == ("ring", 1, 12.0, 0.0, "SYS")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<system><cpu>", "is not complete XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system>&b;</system>', "declares entities"),
    ],
)
def test_xml_that_will_not_do_is_refused(text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_topology(text, file="topo")


def test_hang_flags_by_rank() -> None:
    page = 'XPU_TIMER_COMMON_HANG{ip="a",rank="1"} 1\nXPU_TIMER_COMMON_HANG{local_rank="3",rank="0"} 0\n# XPU_TIMER_A'
    assert read_xpu_timer(page, file="page") == HangFlags("page", (1,), (0,))


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    list(read_inspector(text.splitlines()))
    read_xpu_timer(text, file="a")
    for read in (read_ras, read_topology):
        try:
            read(text, file="a")
        except DataError:
            continue
