"""GPUs, cards and NVLinks of machines are put together from all dumps, and unequal links of equal pairs are found."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stepscope.analyzer.nccl import explain_nccl
from stepscope.collectors.nccl.log import read_log
from stepscope.collectors.nccl.topology import read_topology
from stepscope.core.documents.nccl import Devices, NcclReport


def _of_log(*trees: str, hosts: Iterable[str] = ("a",)) -> NcclReport:
    lines = [
        f"{host}:{number}:{number} [0] NCCL INFO {line}"
        for host in hosts
        for number, tree in enumerate(trees, 1)
        for line in tree.strip("\n").splitlines()
    ]
    return explain_nccl(list(read_log(enumerate(lines, 1), file="log")))


def _of_files(*texts: str) -> NcclReport:
    return explain_nccl(
        [node for number, text in enumerate(texts) for node in read_topology(text, file=f"{number}.xml")]
    )


def _gpus(links: dict[int, dict[int | str, float]]) -> str:
    """A dump of GPUs with their NVLinks in GB/s, to GPUs by number and to "NVS"."""
    lines = ["CPU/0-0 (1/1/2)"]
    for gpu, of_gpu in links.items():
        lines.append(f"+ PCI[24.0] - GPU/0-{gpu}000 ({gpu})")
        for target, gbs in of_gpu.items():
            name = "NVS/0-0" if target == "NVS" else f"GPU/0-{target}000"
            lines.append(f"              + NVL[{gbs}] - {name}")
    return "\n".join(lines)


def _slow(report: NcclReport) -> list[str]:
    return [one.message.partition(": links")[0] for one in report.findings if one.code == "slow_nvlink"]


def _mesh(gpus: Iterable[int], gbs: float) -> dict[int, dict[int | str, float]]:
    members = list(gpus)
    return {gpu: {peer: gbs for peer in members if peer != gpu} for gpu in members}


@pytest.mark.parametrize(
    ("links", "slow"),
    [
        # NVSwitch: 18 links of 20.6 GB/s each; one GPU has 17, one none
        ({0: {"NVS": 370.8}, 1: {"NVS": 350.2}, 2: {"NVS": 370.8}, 3: {}},
         ["a: NVLink from GPU 1000 to NVSwitch: 350.2 GB/s, where others have 370.8 GB/s",
          "a: NVLink from GPU 3000 to NVSwitch: no link, where others have 370.8 GB/s"]),
        ({gpu: {"NVS": 370.8} for gpu in range(8)}, []),
        # four A100 in a mesh of four links each: one link between 0 and 1 is down on both sides
        (_mesh(range(4), 80.0) | {0: {1: 60.0, 2: 80.0, 3: 80.0}, 1: {0: 60.0, 2: 80.0, 3: 80.0}},
         ["a: NVLink from GPU 0000 to GPU 1000: 60 GB/s, where others have 80 GB/s",
          "a: NVLink from GPU 1000 to GPU 0000: 60 GB/s, where others have 80 GB/s"]),
        # bridges between pairs, one with fewer links
        (_mesh([0, 1], 240.0) | _mesh([2, 3], 240.0) | _mesh([4, 5], 120.0),
         ["a: NVLink from GPU 4000 to GPU 5000: 120 GB/s, where others have 240 GB/s",
          "a: NVLink from GPU 5000 to GPU 4000: 120 GB/s, where others have 240 GB/s"]),
        # one way of one pair
        ({0: {1: 20.0}, 1: {0: 240.0}}, ["a: NVLink from GPU 0000 to GPU 1000: 20 GB/s, but 240 GB/s back"]),
        # a quad of DGX-1 has pairs of one and of two links; one bridge among GPUs without is no fault; nor is a cube
        ({0: {1: 20.0, 2: 20.0, 3: 40.0}, 1: {0: 20.0, 2: 40.0, 3: 20.0}, 2: {0: 20.0, 1: 40.0, 3: 20.0},
          3: {0: 40.0, 1: 20.0, 2: 20.0}}, []),
        (_mesh([0, 1], 240.0) | {2: {}, 3: {}}, []),
        ({0: {1: 20.0, 2: 40.0}, 1: {0: 20.0, 3: 40.0}, 2: {0: 40.0, 3: 20.0}, 3: {1: 40.0, 2: 20.0}}, []),
    ],
)  # fmt: skip
def test_nvlinks_are_compared_between_equal_pairs(links: dict[int, dict[int | str, float]], slow: list[str]) -> None:
    assert _slow(_of_log(_gpus(links))) == slow


def test_links_of_amd_s_gpus_are_xgmi() -> None:
    report = _of_log(_gpus({0: {1: 20.0}, 1: {0: 48.0}}).replace("NVL[", "XGMI["))
    assert [(one.links, one.nvlink_gbs) for one in report.devices] == [("XGMI", 20.0)]
    assert _slow(report) == ["a: XGMI from GPU 0000 to GPU 1000: 20 GB/s, but 48 GB/s back"]
    assert [one.links for one in _of_log(_gpus({0: {1: 20.0}, 1: {0: 20.0}})).devices] == ["NVLink"]
    assert [one.links for one in _of_log(_gpus({0: {}, 1: {}})).devices] == [""]


@pytest.mark.parametrize(
    ("host", "said"),
    [("a", "by NCCL_TOPO_FILE=/etc/topo.xml, which NCCL reads instead of the machine: correct the file"),
     ("b", "links are down or not trained; see nvidia-smi nvlink -s")],
)  # fmt: skip
def test_links_of_a_topology_file_are_no_fault_of_the_machine(host: str, said: str) -> None:
    """A file of another host tells nothing of this one's links."""
    tree = _gpus({0: {1: 20.0}, 1: {0: 240.0}})
    lines = [f"{host}:1:1 [0] NCCL INFO NCCL_TOPO_FILE set by environment to /etc/topo.xml"]
    lines += [f"a:1:1 [0] NCCL INFO {line}" for line in tree.splitlines()]
    findings = explain_nccl(list(read_log(enumerate(lines, 1), file="log"))).findings
    (message,) = [one.message for one in findings if one.code == "slow_nvlink"]
    assert said in message
    assert ("GPU or its bridge checked" in message) == (host == "b")


def test_dumps_of_one_host_are_one_machine_whatever_gpus_each_has() -> None:
    """A communicator of some of the GPUs dumps only those."""
    report = _of_log(_gpus({0: {}, 1: {}}), _gpus({1: {}, 2: {}}), hosts=("a", "b"))
    assert [(one.machine, one.num_gpus) for one in report.devices] == [("a", 3), ("b", 3)]


def test_a_domain_of_several_hosts_is_one() -> None:
    """NVLink between nodes: every host dumps all of them."""
    tree = "CPU/0-0 (1/1/2)\n+ PCI[24.0] - GPU/0-1000 (0)\nCPU/1-0 (1/1/2)\n+ PCI[24.0] - GPU/1-1000 (1)"
    report = _of_log(tree, hosts=("a", "b"))
    assert [(one.machine, one.num_gpus, one.num_processors) for one in report.devices] == [("", 2, 2)]


def test_gpus_behind_a_device_node_are_counted_once() -> None:
    """RCCL and NCCL 2.30."""
    tree = """
CPU/0-0 (1/1/2)
+ PCI[12.0] - DEV/0-b000 (100266a3106b0203)
              + LOC[5000.0] - GPU/0-b000
              + XGMI[24.0] - DEV/0-e000
+ PCI[12.0] - DEV/0-e000 (100266a3106b0203)
              + LOC[5000.0] - GPU/0-e000
              + XGMI[24.0] - DEV/0-b000
+ PCI[5000.0] - NIC/0-0
+ PCI[1.5] - NIC/0-3000"""
    assert _of_log(tree).devices == [Devices("log", 1, 2, 1, 12.0, "a", None, 24.0, None, links="XGMI")]


_SHARED = """
CPU/0-0 (1/1/2)
+ PCI[24.0] - PCI/0-1000 (10b5879610b58796)
              + PCI[24.0] - GPU/0-2000 (0)
              + PCI[24.0] - GPU/0-3000 (1)
              + PCI[24.0] - NIC/0-4000
{net}+ PCI[24.0] - NIC/0-5000"""
_NET = "                            + NET[50.0] - NET/0-0 (0/0/1/50.000000)\n"


@pytest.mark.parametrize(
    ("net", "messages", "rate"),
    [
        (_NET, ["a: 2 GPUs share 1 network card of 50 GB/s behind one switch"], 50.0),
        # a communicator of one node has no ports: nothing uses the cards
        ("", [], None),
    ],
)  # fmt: skip
def test_gpus_share_cards_that_are_used(net: str, messages: list[str], rate: float | None) -> None:
    report = _of_log(_SHARED.format(net=net))
    assert [one.message.partition(": each")[0] for one in report.findings] == messages
    assert [one.network_card_gbs for one in report.devices] == [rate]


def _card(*nets: str, slot: str = "16 GT/s") -> str:
    return (
        '<system><cpu numaid="0"><pci busid="0000:10:00.0" class="0x060400">'
        + "".join(f'<pci busid="0000:{bus}:00.0" class="0x030200"><gpu dev="0"/></pci>' for bus in (11, 12))
        + f'<pci busid="0000:13:00.0" class="0x020700" link_speed="{slot}" link_width="16"><nic>'
        + "".join(f'<net name="{name}" speed="{speed}"/>' for name, _, speed in (net.partition("=") for net in nets))
        + "</nic></pci></pci></cpu></system>"
    )


@pytest.mark.parametrize(
    ("nets", "num_cards", "rate", "shared"),
    [
        (["mlx5_0=200000"], 1, 25.0, "2 GPUs share 1 network card of 25 GB/s behind one switch"),
        (["mlx5_0=100000", "mlx5_1=200000"], 2, 12.5, ""),
        (["mlx5_0=200000", "mlx5_1=200000", "mlx5_0+mlx5_1=400000"], 1, 50.0, ""),
        (["mlx5_0=-1"], 1, None, "2 GPUs share 1 network card behind one switch"),
        ([], 1, None, "2 GPUs share 1 network card behind one switch"),
    ],
)
def test_a_card_s_rate_is_that_of_its_ports(nets: list[str], num_cards: int, rate: float | None, shared: str) -> None:
    report = _of_files(_card(*nets))
    assert [(one.num_network_cards, one.network_card_gbs) for one in report.devices] == [(num_cards, rate)]
    assert [one.message.partition(":")[0] for one in report.findings] == ([shared] if shared else [])


def test_an_interface_without_a_slot_is_shared_by_nobody() -> None:
    """As eth0 in a virtual machine of Azure."""
    gpu = '<pci busid="0001:00:00.0" class="0x030200"><gpu dev="0"/></pci>'
    nic = '<nic><net name="eth0" speed="100000"/></nic>'
    report = _of_files(f'<system><cpu numaid="0">{gpu}{gpu.replace("0001", "0002")}{nic}</cpu></system>')
    assert [(one.num_gpus, one.num_network_cards, one.network_card_gbs) for one in report.devices] == [(2, 1, 12.5)]
    assert report.findings == []


def _linked(host_hash: str, *counts: int) -> str:
    """Two GPUs with NVLinks to two switches each, and one NVLink of Power to its processor."""
    gpus = "".join(
        f'<pci busid="0000:{bus}:00.0"><gpu dev="0">'
        f'<nvlink target="0000:a{bus}:00.0" count="{count}" tclass="0x068000"/>'
        f'<nvlink target="0000:b{bus}:00.0" count="6" tclass="0x068000"/></gpu></pci>'
        for bus, count in zip((10, 20), counts, strict=True)
    )
    return f'<system><cpu host_hash="{host_hash}" numaid="0">{gpus}</cpu></system>'


def test_files_of_several_ranks_are_one_machine_and_links_are_counted_once() -> None:
    report = _of_files(_linked("0x1", 12, 11), _linked("0x1", 12, 11), _linked("0x2", 12, 12))
    assert [(one.file, one.num_gpus, one.nvlinks) for one in report.devices] == [("0.xml", 2, 17), ("2.xml", 2, 18)]
    assert _slow(report) == ["NVLink from GPU 20000 to NVSwitch: 17 links, where others have 18 links"]


def test_equal_files_without_a_host_are_one_machine_and_unequal_ones_are_not() -> None:
    equal = _linked("", 12, 12)
    assert len(_of_files(equal, equal).devices) == 1
    assert len(_of_files(equal, _linked("", 12, 11)).devices) == 2
