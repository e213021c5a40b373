"""/metrics page: readings and state of all sources in the format that Prometheus parses."""

from __future__ import annotations

import gzip
import math
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from stepscope.agent.exporter.exposition import CATALOGUE, LabelTexts, MetricFamilies, exposition_text
from stepscope.agent.exporter.metrics_page import DcgmNames, MetricsPage
from stepscope.agent.polling import SourceState
from stepscope.collectors.dcgm_exporter.collector import DcgmExporterCollector
from stepscope.collectors.dcgm_exporter.page import dcgm_endpoint_of
from stepscope.core.metrics.readings import GPU, Collection, Finding, Labels, Missing, MissingReason, Reading, labels_of

_NOW_NS = 1_700_000_000 * 10**9
_GPU0 = labels_of(gpu=0, uuid="GPU-0")
_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_INFO = Reading(
    GPU + "info",
    1.0,
    labels_of(gpu=0, uuid="GPU-0", name="NVIDIA H100", pci_bus_id="00000000:0F:00.0", minor_number=3),
    _NOW_NS,
)


def _reading(name: str, value: float, labels: Labels = _GPU0, age_seconds: float = 0.0) -> Reading:
    return Reading(GPU + name, value, labels, _NOW_NS - int(age_seconds * 1e9))


def _state(*readings: Reading, name: str = "nvml", age_seconds: float = 0.5, **further: object) -> SourceState:
    collection = Collection(readings, further.pop("missing", ()), further.pop("findings", ()))  # type: ignore[arg-type]
    when = _NOW_NS - int(age_seconds * 1e9)
    return SourceState(name, collection, when, 0.25, num_collections=7, age_seconds=age_seconds, **further)  # type: ignore[arg-type]


def _page(*states: SourceState, dcgm_names: DcgmNames | None = None) -> MetricsPage:
    return MetricsPage(lambda: states, wall_clock_ns=lambda: _NOW_NS, hostname="node7", dcgm_names=dcgm_names)


def _parsed(text: str, *, is_openmetrics: bool) -> list[Any]:
    parse: Any = parse_openmetrics if is_openmetrics else parse_prometheus
    return list(parse(text))


def _samples(page: MetricsPage, accept: str = "") -> dict[tuple[str, Labels], float]:
    text = page.encoded(accept=accept)[0].decode()
    families = _parsed(text, is_openmetrics=bool(accept))
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, labels_of(**sample.labels)): float(sample.value) for sample in samples}
    assert len(found) == len(samples), "a series is there twice"
    return found


def _of(page: MetricsPage, name: str, **labels: str) -> float | None:
    return _samples(page).get((name, labels_of(**labels)))


@pytest.mark.parametrize("accept", ["", _OPENMETRICS])
def test_what_was_read_is_on_the_page(accept: str) -> None:
    readings = (_INFO, _reading("power_watts", 412.5), _reading("energy_joules_total", 1_234_567.25))
    found = _samples(_page(_state(*readings)), accept)
    for reading in readings:
        assert found[reading.metric, reading.labels] == reading.value


def test_each_metric_of_the_catalogue_has_a_family_that_openmetrics_takes() -> None:
    families = MetricFamilies(LabelTexts())
    for name in CATALOGUE:
        families.add("any", name, (), 1.0)
    text = exposition_text(families.in_order(), LabelTexts(), is_openmetrics=True) + "# EOF\n"
    parsed = {sample.name for family in _parsed(text, is_openmetrics=True) for sample in family.samples}
    assert set(CATALOGUE) == parsed


@given(
    st.dictionaries(
        st.dictionaries(st.sampled_from(["gpu", "uuid", "pid"]), st.text()).map(lambda labels: labels_of(**labels)),
        st.floats(allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=5,
    )
)
def test_it_is_written_as_prometheus_client_writes_it(values: dict[Labels, float]) -> None:
    texts = LabelTexts()
    families = MetricFamilies(texts)
    for labels, value in values.items():
        for name in ("power_watts", "energy_joules_total", "info"):
            families.add("any", GPU + name, labels, value)
    page = families.in_order()

    class Registry:
        def collect(self) -> list[Any]:
            return [series.family() for series in page]

    assert exposition.generate_latest(Registry()).decode() == exposition_text(page, texts, is_openmetrics=False)
    ours = exposition_text(page, texts, is_openmetrics=True) + "# EOF\n"
    assert openmetrics_exposition.generate_latest(Registry()).decode() == ours  # type: ignore[no-untyped-call]


@given(st.text(st.characters(exclude_categories=[]), min_size=1), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_number_comes_back(text: str, value: float) -> None:
    """What is no Unicode becomes question marks: one name of a process must not cost the whole page."""
    labels = labels_of(gpu=0, uuid=text)
    expected = labels_of(gpu=0, uuid=text.encode(errors="replace").decode())
    for accept in ("", _OPENMETRICS):
        assert (
            _samples(_page(_state(_reading("power_watts", value, labels))), accept)[GPU + "power_watts", expected]
            == value
        )


def test_what_is_missing_has_a_reason_and_no_value() -> None:
    missing = (
        Missing(GPU + "memory_temperature_celsius", _GPU0, MissingReason.NOT_SUPPORTED),
        Missing(GPU + "memory_temperature_celsius", labels_of(gpu=1, uuid="GPU-1"), MissingReason.NOT_SUPPORTED),
        Missing("", labels_of(gpu=2), MissingReason.GONE, "off its bus"),
    )
    page = _page(_state(missing=missing))
    assert not [name for name, _ in _samples(page) if name.startswith(GPU)]
    metric = GPU + "memory_temperature_celsius"
    assert _of(page, "stepscope_agent_missing", collector="nvml", metric=metric, reason="not_supported") == 2
    assert _of(page, "stepscope_agent_missing", collector="nvml", metric="", reason="gone") == 1


def test_a_source_says_how_it_is() -> None:
    hangs = _state(name="host", age_seconds=12, reason=MissingReason.TIMED_OUT, num_errors=3)
    page = _page(_state(_reading("power_watts", 1.0)), hangs, SourceState("kernel_log", reason=MissingReason.NOT_YET))
    assert _of(page, "stepscope_agent_collector_up", collector="nvml", reason="") == 1
    assert _of(page, "stepscope_agent_collector_up", collector="host", reason="timed_out") == 0
    assert _of(page, "stepscope_agent_collector_up", collector="kernel_log", reason="not_yet") == 0
    assert _of(page, "stepscope_agent_collector_errors_total", collector="host") == 3
    assert _of(page, "stepscope_agent_collections_total", collector="nvml") == 7
    assert _of(page, "stepscope_agent_collector_age_seconds", collector="host") == 12
    assert _of(page, "stepscope_agent_collector_age_seconds", collector="kernel_log") is None
    assert _of(page, "stepscope_agent_collector_duration_seconds", collector="nvml") == 0.25


def test_ages_are_of_the_newest_value_that_was_sampled() -> None:
    readings = (
        _reading("power_watts", 1.0, age_seconds=8),
        _reading("power_limit_watts", 1.0, age_seconds=20),
        _reading("up", 0.0, labels_of(gpu=0, uuid="GPU-0", reason="timed_out")),
        _reading("xid_last", 79.0),
    )
    page = _page(_state(*readings))
    assert _of(page, "stepscope_agent_sample_age_seconds", collector="nvml", gpu="0", uuid="GPU-0") == 8


def test_values_of_a_source_that_is_silent_for_a_minute_are_not_told() -> None:
    page = _page(_state(_reading("power_watts", 1.0), age_seconds=60))
    assert _of(page, GPU + "power_watts", gpu="0", uuid="GPU-0") is None
    assert _of(page, "stepscope_agent_readings_dropped", collector="nvml", reason="stale") == 1
    assert _of(page, "stepscope_agent_collector_age_seconds", collector="nvml") == 60


@pytest.mark.parametrize("seconds", [7200, -7200])
def test_a_clock_that_is_set_takes_nothing_from_the_page(seconds: int) -> None:
    state = _state(_reading("power_watts", 1.0), name="health", age_seconds=3)
    page = MetricsPage(lambda: (state,), wall_clock_ns=lambda: _NOW_NS + seconds * 10**9)
    assert _of(page, GPU + "power_watts", gpu="0", uuid="GPU-0") == 1.0
    assert _of(page, "stepscope_agent_collector_age_seconds", collector="health") == 3
    assert _of(page, "stepscope_agent_readings_dropped", collector="health", reason="stale") is None


def test_what_would_break_the_page_is_left_out_and_counted() -> None:
    beside = _state(
        _reading("power_watts", 2.0),
        _reading("no_such_metric", 1.0),
        _reading("power_watts", 3.0, (("not-a-name", "x"),)),
        name="dcgm_exporter",
    )
    page = _page(_state(_reading("power_watts", 1.0)), beside)
    assert _of(page, GPU + "power_watts", gpu="0", uuid="GPU-0") == 1.0
    for reason in ("duplicate", "unknown_metric", "unknown_label"):
        assert _of(page, "stepscope_agent_readings_dropped", collector="dcgm_exporter", reason=reason) == 1


def test_findings_are_counted_by_kind_and_gpu() -> None:
    found = Finding("profiling_silent", "all counters are 0", _GPU0, _NOW_NS)
    page = _page(_state(findings=(found,)))
    labels = {"collector": "nvml", "code": "profiling_silent", "gpu": "0", "uuid": "GPU-0"}
    assert _of(page, "stepscope_agent_finding", **labels) == 1


def test_the_format_is_what_the_scraper_asks_for() -> None:
    page = _page(_state(_INFO, _reading("energy_joules_total", 5.0)))
    body, headers = page.encoded()
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"# TYPE stepscope_gpu_energy_joules_total counter" in body
    assert b"# TYPE stepscope_gpu_info gauge" in body
    assert b"process_cpu_seconds_total" in body
    body, headers = page.encoded(accept=_OPENMETRICS, accept_encoding="deflate, gzip;q=0.5")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert headers["Content-Encoding"] == "gzip"
    text = gzip.decompress(body).decode()
    assert "# TYPE stepscope_gpu_energy_joules counter\n# UNIT stepscope_gpu_energy_joules joules\n" in text
    assert "# TYPE stepscope_gpu info\n" in text
    assert text.endswith("# EOF\n")
    assert b"stepscope__gpu__energy" in page.encoded(accept="text/plain; version=1.0.0; escaping=dots")[0]


def test_a_second_scrape_gets_the_same_bytes_until_a_source_has_something_new() -> None:
    states = [_state(_reading("power_watts", 1.0))]
    page = MetricsPage(lambda: tuple(states), wall_clock_ns=lambda: _NOW_NS)
    first = page.encoded()[0]
    assert page.encoded()[0] is first
    assert gzip.decompress(page.encoded(accept_encoding="gzip")[0]) == first
    assert page.encoded(accept=_OPENMETRICS)[0] != first
    states[0] = _state(_reading("power_watts", 2.0))
    assert _of(page, GPU + "power_watts", gpu="0", uuid="GPU-0") == 2.0
    states[0] = replace(states[0], reason=MissingReason.TIMED_OUT)
    assert _of(page, "stepscope_agent_collector_up", collector="nvml", reason="timed_out") == 0.0


def test_a_page_that_is_scraped_regularly_is_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    now, states = [0.0], [_state(_reading("power_watts", 1.0))]
    made: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def own_readings() -> tuple[Reading, ...]:  # once a page
        made.append(now[0])
        return ()

    page = MetricsPage(lambda: tuple(states), own_readings=own_readings)

    def round_at(seconds: float) -> None:
        now[0], states[0] = seconds, _state(_reading("power_watts", seconds))
        page.prepare()

    def scrape_at(seconds: float) -> None:
        now[0] = seconds
        page.encoded(accept=_OPENMETRICS, accept_encoding="gzip")

    round_at(0.5)
    for seconds in (1.0, 16.0, 31.1):
        scrape_at(seconds)
    assert made == [1.0, 16.0, 31.1]
    for seconds in (32.0, 45.0, 46.0):
        round_at(seconds)
    assert made[3:] == [46.0]  # once, with the last values before the scrape
    scrape_at(46.3)
    assert made[3:] == [46.0]
    scrape_at(50.0)  # somebody else, or the rhythm has changed
    for seconds in (53.0, 54.0, 61.0):
        round_at(seconds)
    assert made[4:] == [50.0]


def test_the_agents_process_is_as_prometheus_client_shows_it() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    theirs = {sample.name: sample.value for family in registry.collect() for sample in family.samples}
    ours = {name: value for (name, labels), value in _samples(_page()).items() if name.startswith("process_")}
    assert ours.keys() == theirs.keys()
    for name in ("process_start_time_seconds", "process_max_fds"):
        assert ours[name] == theirs[name]
    assert ours["process_resident_memory_bytes"] == pytest.approx(theirs["process_resident_memory_bytes"], rel=0.2)
    assert ours["process_cpu_seconds_total"] == pytest.approx(theirs["process_cpu_seconds_total"], abs=1.0)


def test_under_dcgms_names_a_value_is_that_uuids_whichever_source_numbers_gpus_how() -> None:
    def told(*of: tuple[str, str, float]) -> SourceState:
        ups = (_reading("up", 1.0, labels_of(gpu=gpu, uuid=uuid)) for gpu, uuid, _ in of)
        infos = (_reading("info", 1.0, labels_of(gpu=gpu, uuid=uuid, minor_number=gpu)) for gpu, uuid, _ in of)
        fans = (_reading("fan_speed_ratio", fan, labels_of(gpu=gpu, uuid=uuid)) for gpu, uuid, fan in of if fan)
        return _state(*ups, *infos, *fans)

    nvml = told(("0", "GPU-0", 0.0), ("1", "GPU-1", 0.0))
    swapped = told(("0", "GPU-1", 0.71), ("1", "GPU-0", 0.3), ("2", "GPU-2", 0.2))
    text = _page(nvml, swapped, dcgm_names=DcgmNames.OLD).encoded()[0].decode()
    fans = {line.partition(" ")[0]: line.split()[1] for line in text.splitlines() if line.startswith("DCGM_FI_DEV_FAN")}
    assert fans == {
        f'DCGM_FI_DEV_FAN_SPEED{{Hostname="node7",UUID="GPU-{gpu}",device="nvidia{gpu}",gpu="{gpu}"}}': value
        for gpu, value in enumerate(("30.0", "71.0", "20.0"))
    }


@pytest.mark.parametrize("names", list(DcgmNames))
def test_under_dcgms_names_a_client_of_dcgm_exporter_reads_the_same(names: DcgmNames) -> None:
    mig = labels_of(gpu=1, uuid="MIG-1", gpu_instance=7, compute_instance=0, mig_profile="1g.10gb")
    readings = (
        _INFO,
        _reading("power_watts", 412.5),
        _reading("utilization_ratio", 0.37),
        _reading("sm_clock_hertz", 1.98e9),
        _reading("energy_joules_total", 1234.567),
        _reading("memory_used_bytes", 2.0**30),
        _reading("info", 1.0, labels_of(gpu=1, uuid="GPU-1")),
        _reading("memory_used_bytes", 2.0**20, mig),
        _reading("nvlink_up", 1.0, labels_of(gpu=0, uuid="GPU-0", link=3)),
    )
    text = _page(_state(*readings), dcgm_names=names).encoded()[0].decode()
    name = {"old": "DCGM_FI_DEV_GPU_UTIL", "new": "DCGM_FI_DEV_GPU_UTIL_RATIO"}[names]
    line = next(line for line in text.splitlines() if line.startswith(f"{name}{{"))
    assert line == (
        f'{name}{{Hostname="node7",UUID="GPU-0",device="nvidia3",gpu="0",modelName="NVIDIA H100",'
        'pci_bus_id="00000000:0F:00.0"} 37.0'
    )
    assert 'GPU_I_ID="7",GPU_I_PROFILE="1g.10gb",Hostname="node7",UUID="GPU-1"' in text
    dcgm_page = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("DCGM_"))
    client = DcgmExporterCollector(dcgm_endpoint_of("x"), fetcher=lambda *_: dcgm_page, wall_clock_ns=lambda: _NOW_NS)
    read = {reading.metric: reading for reading in client.collect().readings if reading.labels == _GPU0}
    for reading in readings[1:6]:
        assert math.isclose(read[reading.metric].value, reading.value), reading.metric
