"""NVLink errors by whichever way a driver answers: fields of all links, fields of a link, counters; and the fabric."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.nvml.collector import NvmlCollector
from stepscope.core.hardware.fabric import fabric_health, fabric_states, fabric_summary
from stepscope.core.metrics.readings import GPU, Collection, MissingReason
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.nvml.reading_of import missing_of, value_of

_TOTALS = ("field__38", "field__45", "field__52", "field__59")


def _field(number: int, link: int) -> str:
    return f"field__{number}__{link}" if link else f"field__{number}"  # scope 0 is none


def _without_totals(index: int = 0) -> dict[str, object]:
    return {key: value for key, value in profiles.h100(index).items() if key not in _TOTALS}


def _read(nvml: FakeNvml, gpu: dict[str, object]) -> Collection:
    nvml.add(gpu)
    nvml.write()
    return NvmlCollector().collect()


def _links(collection: Collection, kind: str) -> dict[str, float]:
    return {
        dict(one.labels)["link"]: one.value
        for one in collection.readings
        if one.metric == GPU + "nvlink_link_errors_total" and dict(one.labels)["kind"] == kind
    }


def test_the_fields_of_all_links_count_first(nvml: FakeNvml) -> None:
    fields = {"field__52": "c 7", "field__59": "c 1", "field__38": "c 5", "field__45": "c 6"}
    of_links = {_field(161, link): f"c {link}" for link in range(18)}
    collection = _read(nvml, {**profiles.h100(0), **fields, **of_links})
    assert value_of(collection, "nvlink_replay_errors_total") == 7
    assert value_of(collection, "nvlink_recovery_errors_total") == 1
    assert value_of(collection, "nvlink_crc_flit_errors_total") == 5
    assert value_of(collection, "nvlink_crc_data_errors_total") == 6
    assert _links(collection, "replay") == {str(link): link for link in range(1, 18)}  # only those that have any


@pytest.mark.parametrize(
    ("number", "metric", "kind"),
    [
        (161, "nvlink_replay_errors_total", "replay"),
        (162, "nvlink_recovery_errors_total", "recovery"),
        (163, "nvlink_crc_errors_total", "crc"),
        (206, "nvlink_malformed_packets_total", "malformed_packets"),
        (207, "nvlink_dropped_packets_total", "dropped_packets"),
        (208, "nvlink_receive_errors_total", "receive_errors"),
        (209, "nvlink_remote_errors_total", "remote_errors"),
        (210, "nvlink_general_errors_total", "general_errors"),
        (211, "nvlink_integrity_errors_total", "integrity_errors"),
        (214, "nvlink_recoveries_failed_total", "recoveries_failed"),
        (215, "nvlink_recoveries_total", "recoveries"),
        (219, "nvlink_effective_errors_total", "effective_errors"),
        (221, "nvlink_symbol_errors_total", "symbol_errors"),
    ],
)
def test_without_a_field_of_all_links_their_sum_counts(nvml: FakeNvml, number: int, metric: str, kind: str) -> None:
    of_links = {_field(number, link): "c 3" if link in (0, 5) else "c 0" for link in range(18)}
    collection = _read(nvml, {**_without_totals(), **of_links})
    assert value_of(collection, metric) == 6
    assert _links(collection, kind) == {"0": 3, "5": 3}


@pytest.mark.parametrize(
    ("counter", "metric", "kind"),
    [
        (0, "nvlink_replay_errors_total", "replay"),
        (1, "nvlink_recovery_errors_total", "recovery"),
        (2, "nvlink_crc_flit_errors_total", "crc_flit"),
        (3, "nvlink_crc_data_errors_total", "crc_data"),
    ],
)
def test_without_any_field_the_counters_of_the_links_count(
    nvml: FakeNvml, counter: int, metric: str, kind: str
) -> None:
    counters = {f"nvlink_errors__{link}__{counter}": 4 if link == 2 else 0 for link in range(18)}
    collection = _read(nvml, {**_without_totals(), **counters})
    assert value_of(collection, metric) == 4
    assert _links(collection, kind) == {"2": 4}


def test_a_link_that_is_down_keeps_its_count_and_one_that_never_was_up_is_not_asked(nvml: FakeNvml) -> None:
    collector = NvmlCollector(slow_poll_seconds=0.0)
    of_links = {_field(161, link): "c 10" for link in range(18)}
    nvml.add({**_without_totals(), **of_links, "nvlink__17": 0})
    nvml.write()
    assert value_of(collector.collect(), "nvlink_replay_errors_total") == 170
    nvml.set(0, **{"nvlink__3": 0, _field(161, 3): None, _field(161, 4): "c 11"})
    nvml.write()
    assert value_of(collector.collect(), "nvlink_replay_errors_total") == 171
    nvml.set(0, **{"nvlink__3": 1, _field(161, 3): "c 12"})
    nvml.write()
    for _ in range(5):
        collection = collector.collect()
    assert value_of(collection, "nvlink_replay_errors_total") == 173


@pytest.mark.parametrize("link", [0, 5, 11, 17])
def test_every_link_has_its_turn_in_five_polls(nvml: FakeNvml, link: int) -> None:
    """On an H200 a field of one link takes a third of a millisecond."""
    collector = NvmlCollector(slow_poll_seconds=0.0)
    nvml.add({**_without_totals(), **{_field(163, each): "c 0" for each in range(18)}})
    nvml.write()
    assert value_of(collector.collect(), "nvlink_crc_errors_total") == 0
    nvml.set(0, **{_field(163, link): "c 9"})
    nvml.write()
    found = [value_of(collector.collect(), "nvlink_crc_errors_total") for _ in range(5)]
    assert found[-1] == 9
    assert found[0] == (9 if link < 4 else 0)


def test_links_are_asked_for_what_all_have_when_that_grows(nvml: FakeNvml) -> None:
    collector = NvmlCollector(slow_poll_seconds=0.0)
    all_links = f"field__208__{2**32 - 1}"
    nvml.add({**_without_totals(), all_links: "c 0", **{_field(208, each): "c 0" for each in range(18)}})
    nvml.write()
    assert _links(collector.collect(), "receive_errors") == {}
    nvml.set(0, **{_field(208, 13): "c 2"})
    nvml.write()
    assert _links(collector.collect(), "receive_errors") == {}
    nvml.set(0, **{all_links: "c 2"})
    nvml.write()
    collection = collector.collect()
    assert _links(collection, "receive_errors") == {"13": 2}
    assert value_of(collection, "nvlink_receive_errors_total") == 2


def test_counters_are_not_asked_for_what_a_field_tells(nvml: FakeNvml) -> None:
    """They take longest."""
    crc = {_field(163, link): "c 1" for link in range(18)}
    counters = {f"nvlink_errors__{link}__{counter}": 4 for link in range(18) for counter in (2, 3)}
    collection = _read(nvml, {**_without_totals(), **crc, **counters})
    assert value_of(collection, "nvlink_crc_errors_total") == 18
    assert value_of(collection, "nvlink_crc_flit_errors_total") is None
    assert value_of(collection, "nvlink_crc_data_errors_total") is None


def test_without_any_of_them_nothing_is_known(nvml: FakeNvml) -> None:
    collection = _read(nvml, _without_totals())
    for metric in ("nvlink_replay_errors_total", "nvlink_crc_errors_total", "nvlink_symbol_errors_total"):
        assert value_of(collection, metric) is None
        assert missing_of(collection, metric) == (MissingReason.NOT_SUPPORTED, "")


def test_error_ratios_of_single_links_give_the_worst(nvml: FakeNvml) -> None:
    ratios = {_field(222, link): f"c {3 << 8 | 12}" if link == 9 else f"c {15 << 8 | 255}" for link in range(18)}
    collection = _read(nvml, {**_without_totals(), **ratios})
    assert value_of(collection, "nvlink_symbol_error_ratio") == pytest.approx(3e-12)


def test_a_gpu_without_links_says_so_once(nvml: FakeNvml) -> None:
    gpu = {key: value for key, value in _without_totals().items() if not key.startswith("nvlink_")}
    collector = NvmlCollector(slow_poll_seconds=0.0)
    nvml.add(gpu)
    nvml.write()
    for _ in range(2):
        collection = collector.collect()
        assert missing_of(collection, "nvlink_up") == (MissingReason.NOT_SUPPORTED, "")
        assert missing_of(collection, "nvlink_links") == (MissingReason.NOT_SUPPORTED, "")
        assert missing_of(collection, "nvlink_recovery_errors_total") == (MissingReason.NOT_SUPPORTED, "")


def test_the_memory_on_the_die(nvml: FakeNvml) -> None:
    errors = {"sram_corrected": 12, "sram_parity": 1, "sram_secded": 4, "sram_lifetime_secded": 9, "sram_exceeded": 1}
    collection = _read(nvml, {**profiles.h100(0), **errors})
    assert value_of(collection, "sram_corrected_errors_total") == 12
    assert value_of(collection, "sram_uncorrected_errors_total") == 5
    assert value_of(collection, "sram_lifetime_uncorrected_errors_total") == 9
    assert value_of(collection, "sram_threshold_exceeded") == 1


def test_a_card_without_ecc_has_no_threshold(nvml: FakeNvml) -> None:
    gpu = {key: value for key, value in profiles.h100(0).items() if key != "sram_exceeded"}
    assert missing_of(_read(nvml, gpu), "sram_threshold_exceeded") == (MissingReason.NOT_SUPPORTED, "")


@pytest.mark.parametrize(
    ("mask", "summary", "unhealthy"),
    [
        (0x1AA, 1, set()),
        (0x1A9, 3, {"bandwidth", "capacity"}),
        (0x1A6, 2, {"route_recovery", "summary"}),
        (0x4AA, 2, {"configuration", "no_partition", "summary"}),
        (0xFAA, 2, {"configuration", "configuration_15", "summary"}),
        (0x0, 0, set()),
        (0x1AA, None, set()),  # an older driver has no summary
        (0x5AA, None, {"configuration", "too_few_links"}),
    ],
)
def test_health_of_the_fabric(nvml: FakeNvml, mask: int, summary: int | None, unhealthy: set[str]) -> None:
    gpu = {**profiles.h100(0), "fabric_health": mask, "fabric_summary": summary}
    collection = _read(nvml, {key: value for key, value in gpu.items() if value is not None})
    aspects = {
        dict(one.labels)["aspect"]: one.value for one in collection.readings if one.metric == GPU + "fabric_health"
    }
    assert {aspect for aspect, value in aspects.items() if not value} == unhealthy
    assert ("summary" in aspects) is (summary in (1, 2))
    assert value_of(collection, "fabric_state", state="completed") == 1


@given(mask=st.integers(0, 2**32 - 1), state=st.integers(0, 2**32 - 1), summary=st.integers(0, 255))
def test_each_aspect_of_any_fabric_is_0_or_1_and_one_state_holds(mask: int, state: int, summary: int) -> None:
    health = fabric_health(mask) | fabric_summary(summary)
    assert set(health.values()) <= {0.0, 1.0}
    assert sorted(fabric_states(state).values())[-2:] == [0.0, 1.0]


@pytest.mark.parametrize("celsius", [-5, -40, 0, 34])
def test_temperatures_below_zero(nvml: FakeNvml, celsius: int) -> None:
    gpu = {**profiles.h100(0), "temperature__0": celsius, "field__82": f"u {celsius % 2**32}", "margin": celsius}
    collection = _read(nvml, gpu)
    assert value_of(collection, "temperature_celsius") == celsius
    assert value_of(collection, "memory_temperature_celsius") == celsius
    assert value_of(collection, "temperature_margin_celsius") == celsius


def test_a_temperature_below_absolute_zero_is_none(nvml: FakeNvml) -> None:
    collection = _read(nvml, {**profiles.h100(0), "temperature__0": -300})
    assert value_of(collection, "temperature_celsius") is None
    assert missing_of(collection, "temperature_celsius") is not None
