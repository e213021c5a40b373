"""Links: expected bandwidth, and small messages distinguished from slow links."""

from __future__ import annotations

import pytest

from stepscope.core.hardware.gpu_catalogue import (
    Link,
    LinkKind,
    bus_factor,
    expected_seconds,
    find_gpu,
    is_latency_bound,
    network_link,
    pcie_link,
    scale_out_link,
    scale_up_link,
)

H100 = "NVIDIA H100 80GB HBM3"


def expected_link(device: str, num_ranks: int) -> Link:
    gpu = find_gpu(device)
    assert gpu is not None
    return scale_up_link(gpu, device, num_ranks)


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 8) == pytest.approx(2 * 7 / 8)
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert bus_factor(kind, 4) == pytest.approx(3 / 4)
    for kind in ("broadcast", "reduce", "p2p", "send"):
        assert bus_factor(kind, 4) == 1.0


def test_an_sxm_gpu_has_nvlink_and_a_card_for_a_slot_has_not() -> None:
    assert expected_link(H100, 2).kind is LinkKind.NVLINK
    assert expected_link(H100, 2).bytes_per_second == pytest.approx(360e9)  # 18 lanes of 20 GB/s, as NCCL counts
    assert expected_link("NVIDIA A100-PCIE-40GB", 2).kind is LinkKind.PCIE
    assert pcie_link("Tesla V100-PCIE-32GB").bytes_per_second == pytest.approx(12e9, rel=0.01)  # NCCL's PCI_BW


def test_a_small_group_on_a_mesh_has_few_links() -> None:
    pair, all_eight = expected_link("AMD Instinct MI300X", 2), expected_link("AMD Instinct MI300X", 8)
    assert pair.bytes_per_second == pytest.approx(48e9)
    assert all_eight.bytes_per_second == pytest.approx(7 * 48e9)


def test_large_messages_come_near_the_link_and_small_ones_are_bound_by_latency() -> None:
    link = expected_link(H100, 2)
    large, small = 1 << 30, 4096
    busbw = large * bus_factor("all_reduce", 2) / expected_seconds(link, "all_reduce", 2, large)
    assert 0.98 * link.bytes_per_second < busbw < link.bytes_per_second
    assert not is_latency_bound(link, "all_reduce", 2, large)
    assert 3e-6 < expected_seconds(link, "all_reduce", 2, small) < 10e-6
    assert is_latency_bound(link, "all_reduce", 2, small)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "p2p"])
def test_more_bytes_take_longer(kind: str) -> None:
    link = expected_link(H100, 8)
    times = [expected_seconds(link, kind, 8, 1 << power) for power in range(8, 31)]
    assert times == sorted(times)


CARD = 50e9  # 400 Gbit/s, one for each GPU


@pytest.mark.parametrize(
    ("kind", "members", "expected"),
    [
        ("all_reduce", [1, 1, 1, 1], 50e9),  # one card a host
        ("all_gather", [4, 4], 200e9),  # as many rings as cards
        ("all_gather", [4, 2], 100e9),  # the smallest host's
        ("reduce_scatter", [8, 8], 360e9),  # what NVLink gives, before 8 cards do
        ("p2p", [1, 1], 50e9),
        ("all_to_all", [8, 8], 50e9 * 15 / 8),  # 8 of 15 peers are on the other host
        ("all_to_all", [1, 1], 50e9),
    ],
)
def test_several_cards_of_a_host_carry_a_ring_together(kind: str, members: list[int], expected: float) -> None:
    within = expected_link(H100, max(members)) if max(members) > 1 else None
    link = scale_out_link(CARD, kind, members, within)
    assert link.kind is LinkKind.NETWORK
    assert link.bytes_per_second == pytest.approx(expected)


def test_only_the_steps_between_hosts_have_the_networks_latency() -> None:
    one_host, two_hosts = expected_link(H100, 8), scale_out_link(CARD, "all_reduce", [8, 8], expected_link(H100, 8))
    unknown = network_link(CARD)
    tiny = [expected_seconds(link, "all_reduce", 16, 8) for link in (one_host, two_hosts, unknown)]
    # LL: 30 steps on NVLink of 0.47 us; two of them cross the network, at 2.7 us; all of them
    assert tiny == pytest.approx(
        [(3.6 + 30 * 0.47) / 1e6, (3.6 + 28 * 0.47 + 2 * 2.7) / 1e6, (3.6 + 30 * 2.7) / 1e6], rel=1e-3
    )
