"""Real reports about pages of dcgm-exporter, by their row in the log, and what is right instead."""

from __future__ import annotations

import time

import pytest

from stepscope.collectors.dcgm_exporter import collector
from stepscope.collectors.dcgm_exporter.page import PageFetchError
from stepscope.core.metrics.readings import GPU, MissingReason
from tests.collectors.dcgm_exporter.pages import (
    BUSY,
    SECOND,
    UUIDS,
    Line,
    Pages,
    busy,
    codes,
    collect,
    missing,
    readings,
    render,
    values,
)


@pytest.mark.parametrize("text", ["9223372036854775794", "9223372036854776000", "9.223372036854776e+18"])
def test_bug_14_a_blank_of_dcgm_is_no_utilisation(text: str) -> None:
    page = collect(render(busy(DEV_GPU_UTIL=text)))
    assert values(page, "utilization_ratio") == []
    assert len(missing(page, "utilization_ratio")) == 1
    assert values(page, "power_watts") == [512.371]


def test_bug_13_and_14_each_word_for_none_has_its_reason() -> None:
    page = collect(
        render(
            busy(
                DEV_GPU_TEMP=9223372036854775794,
                DEV_SM_CLOCK=9223372036854775795,
                DEV_MEM_CLOCK=2147483634,
                DEV_POWER_USAGE="140737488355329.000000",
                DEV_FB_USED="[N/A]",
            )
        )
    )
    reasons = {one.metric.removeprefix(GPU): one.reason for one in page.missing}
    assert reasons["temperature_celsius"] is MissingReason.NOT_SUPPORTED
    assert reasons["sm_clock_hertz"] is MissingReason.NO_PERMISSION
    assert reasons["memory_clock_hertz"] is MissingReason.NOT_SUPPORTED
    assert reasons["power_watts"] is MissingReason.UNREADABLE
    assert reasons["memory_used_bytes"] is MissingReason.UNREADABLE


def mig_page(*, with_whole: bool) -> str:
    lines = busy(DEV_GPU_UTIL=0) if with_whole else []
    for profile, instance, tensor, used in (("3g.40gb", "1", "0.30", 30000), ("1g.10gb", "7", "0.10", 5000)):
        lines += [
            Line("DCGM_FI_DEV_POWER_USAGE", "512.371000", instance=(profile, instance)),
            Line("DCGM_FI_DEV_GPU_UTIL", 0, instance=(profile, instance)),
            Line("DCGM_FI_DEV_FB_USED", used, instance=(profile, instance)),
            Line("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0.900000", instance=(profile, instance)),
            Line("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", tensor, instance=(profile, instance)),
        ]
    return render(lines)


@pytest.mark.parametrize("with_whole", [False, True])
def test_bug_15_under_mig_utilisation_is_not_zero_but_not_available(with_whole: bool) -> None:
    page = collect(mig_page(with_whole=with_whole))
    assert values(page, "utilization_ratio") == []
    (absent,) = missing(page, "utilization_ratio")
    assert absent.reason is MissingReason.NOT_SUPPORTED
    assert "graphics_engine_active_ratio" in absent.detail
    assert values(page, "graphics_engine_active_ratio", gpu_instance="7") == [0.9]


def test_bug_15_a_gpu_that_says_mig_is_on_without_its_instances_on_the_page() -> None:
    page = collect(render(busy(DEV_MIG_MODE=1, DEV_GPU_UTIL=0)))
    assert values(page, "utilization_ratio") == []
    assert values(page, "mig_enabled") == [1.0]
    assert values(collect(render(busy(DEV_MIG_MODE=0))), "utilization_ratio") == [0.97]


@pytest.mark.parametrize("with_whole", [False, True])
def test_under_mig_what_the_instances_share_is_told_once(with_whole: bool) -> None:
    page = collect(mig_page(with_whole=with_whole))
    assert values(page, "power_watts") == [512.371]
    assert dict(readings(page, "power_watts")[0].labels) == {"gpu": "0", "uuid": UUIDS[0]}
    tensor = {dict(r.labels).get("gpu_instance", "whole"): r.value for r in readings(page, "tensor_active_ratio")}
    assert tensor == {"1": 0.30, "7": 0.10} | ({"whole": 0.412345} if with_whole else {})
    assert values(page, "memory_used_bytes", mig_profile="1g.10gb") == [5000 * 1024**2]
    assert values(page, "mig_enabled") == [1.0]


def test_bug_16_a_share_over_one_is_clamped_and_told() -> None:
    page = collect(render(busy(PROF_SM_ACTIVE="1.294000", PROF_DRAM_ACTIVE="7.100000")))
    assert values(page, "sm_active_ratio") == [1.0]
    assert codes(page) == ["clamped"]
    assert missing(page, "dram_active_ratio")[0].reason is MissingReason.UNREADABLE


SILENT = {
    **dict.fromkeys(("PROF_GR_ENGINE_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE"), "0.000000"),
    **dict.fromkeys(("PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"), "0"),  # NVIDIA/gpu-monitoring-tools#189
}


@pytest.mark.parametrize(
    ("code", "further"),
    [
        ("profiling_silent", {}),
        ("profiling_silent", {"DEV_ENFORCED_POWER_LIMIT": 700}),
        ("profiling_silent", {"DEV_GPU_UTIL": None}),
        ("profiling_or_utilization_wrong", {"DEV_POWER_USAGE": None}),
        ("profiling_or_utilization_wrong", {"DEV_POWER_USAGE": "68.0"}),  # a busy T4, or an H100 that is a ghost
    ],
)
def test_bug_17_counters_of_zero_while_the_gpu_works_are_unknown_and_a_finding(
    code: str, further: dict[str, object]
) -> None:
    page = collect(render(busy(**SILENT, **further)))
    assert codes(page) == [code]
    assert values(page, "tensor_active_ratio") == []
    assert values(page, "pcie_transmit_bytes_per_second") == []  # they stop together
    assert missing(page, "tensor_active_ratio")[0].reason is MissingReason.UNREADABLE
    assert "restart nv-hostengine" in missing(page, "graphics_engine_active_ratio")[0].detail


@pytest.mark.parametrize(
    "values_of_page",
    [
        {**SILENT, "DEV_GPU_UTIL": 0, "DEV_POWER_USAGE": "71.000000"},  # idle
        {"PROF_GR_ENGINE_ACTIVE": None, "PROF_PIPE_TENSOR_ACTIVE": "0.0", "PROF_DRAM_ACTIVE": "0.0",
         "DEV_POWER_USAGE": "120.0"},  # a kernel that waits for others
        {**SILENT, "PROF_GR_ENGINE_ACTIVE": None},  # one that spins
        {**SILENT, "PROF_PCIE_TX_BYTES": "12345678"},  # they stop together, or not at all
        {**SILENT, "DEV_GPU_UTIL": None, "DEV_POWER_USAGE": None},  # nothing to hold them against
    ],
)  # fmt: skip
def test_zeros_that_may_be_true_stay(values_of_page: dict[str, object]) -> None:
    page = collect(render(busy(**values_of_page)))
    assert codes(page) == []
    assert values(page, "tensor_active_ratio") == [0.0]


RESTING = SILENT | {"DEV_GPU_UTIL": 0, "DEV_POWER_USAGE": "71.0"}


def test_bug_17_counters_found_silent_are_unknown_also_at_rest_until_one_counts() -> None:
    silent, resting = render(busy(**SILENT)), render(busy(**RESTING))
    counting = render(busy(**RESTING | {"PROF_PCIE_RX_BYTES": "1000"}))
    pages = Pages(silent, resting, silent, counting, resting, seconds=10.0)
    _, at_rest, _, counts, after = (pages.collect() for _ in range(5))
    (finding,) = at_rest.findings
    assert finding.code == "profiling_silent"
    assert finding.message == (
        "all profiling counters were 0 when it last worked (97% utilisation, 512 W); not known until they count"
    )
    assert values(at_rest, "tensor_active_ratio") == []
    (absent,) = missing(at_rest, "tensor_active_ratio")
    assert (absent.reason, absent.detail) == (MissingReason.UNREADABLE, f"{finding.message}; restart nv-hostengine")
    for page in (counts, after):
        assert codes(page) == []
        assert values(page, "tensor_active_ratio") == [0.0]


def test_bug_17_silence_ends_where_a_page_tells_no_counters() -> None:
    without = render(busy(**dict.fromkeys(SILENT), DEV_GPU_UTIL=0, DEV_POWER_USAGE="71.0"))
    pages = Pages(render(busy(**SILENT)), without, render(busy(**RESTING)), seconds=10.0)
    assert [codes(pages.collect()) for _ in range(3)] == [["profiling_silent"], [], []]


def test_bug_17_under_mig_counters_found_silent_are_unknown_at_rest_on_all_instances() -> None:
    text = mig_page(with_whole=False)
    silent = text.replace("} 0.900000", "} 0.000000").replace("} 0.30", "} 0.00").replace("} 0.10", "} 0.00")
    pages = Pages(silent, silent.replace("512.371000", "71.0"), seconds=10.0)
    for page in (pages.collect(), pages.collect()):
        assert codes(page) == ["profiling_silent"]
        assert values(page, "graphics_engine_active_ratio") == []
        assert len(missing(page, "graphics_engine_active_ratio")) == 2


def test_bug_17_under_mig_the_power_of_the_gpu_contradicts_the_zeros_of_all_instances() -> None:
    text = mig_page(with_whole=False)
    assert codes(collect(text)) == []
    silent = text.replace("} 0.900000", "} 0.000000").replace("} 0.30", "} 0.00").replace("} 0.10", "} 0.00")
    page = collect(silent)
    assert codes(page) == ["profiling_silent"]
    assert values(page, "graphics_engine_active_ratio") == []
    assert len(missing(page, "graphics_engine_active_ratio")) == 2


@pytest.mark.parametrize(
    "further",
    [
        {"DEV_ENFORCED_POWER_LIMIT": 700},
        {"DEV_ENFORCED_POWER_LIMIT": 700, "PROF_PCIE_TX_BYTES": "123456"},  # so are bytes at rest
        {"PROF_PCIE_TX_BYTES": "123456"},  # the counters count
    ],
)
def test_bug_46_a_utilisation_that_sticks_to_a_gpu_at_rest_is_unknown_and_a_finding(further: dict[str, object]) -> None:
    ghost = SILENT | {"DEV_GPU_UTIL": 100, "DEV_POWER_USAGE": "120.0"} | further
    page = collect(render(busy(**ghost)))
    assert codes(page) == ["utilization_stuck"]
    assert values(page, "utilization_ratio") == []
    assert missing(page, "utilization_ratio")[0].reason is MissingReason.UNREADABLE
    assert values(page, "graphics_engine_active_ratio") == [0.0]


def test_bug_18_what_a_page_lacks_is_said_of_each_gpu_not_taken_for_zero() -> None:
    page = collect(render([*busy(0), *busy(1, PROF_PIPE_TENSOR_ACTIVE=None, PROF_DRAM_ACTIVE=None)]))
    (of_all,) = missing(page, "sm_active_ratio", gpu="0")
    assert "without DCGM_FI_PROF_SM_ACTIVE" in of_all.detail
    (of_one,) = missing(page, "tensor_active_ratio")
    assert of_one.labels == (("gpu", "1"), ("uuid", UUIDS[1]))
    assert "of other GPUs" in of_one.detail
    assert values(page, "tensor_active_ratio") == [0.412345]


def test_bug_19_counters_that_a_profiler_takes_for_a_while_are_missing_and_come_back() -> None:
    """NVIDIA/DCGM#56, #62: one user at a time before GPM; the exporter's page is without them for so long."""
    taken = {name.removeprefix("DCGM_FI_"): None for name, _ in BUSY if "_PROF_" in name}
    with_all, without = ([*busy(0, **lines), *busy(1, **lines)] for lines in (dict[str, None](), taken))
    pages = Pages(render(with_all), render(without), render(without), render(with_all), seconds=10.0)
    before, first, second, after = (pages.collect() for _ in range(4))
    for page in (first, second):
        assert codes(page) == []
        for name in ("graphics_engine_active_ratio", "tensor_active_ratio", "pcie_transmit_bytes_per_second"):
            assert values(page, name) == []
            absent = missing(page, name)
            assert [(dict(one.labels)["gpu"], one.reason) for one in absent] == [
                ("0", MissingReason.GONE),
                ("1", MissingReason.GONE),
            ]
            assert "a profiler has them" in absent[0].detail
        assert values(page, "utilization_ratio") == [0.97, 0.97]
    for page in (before, after):
        assert values(page, "tensor_active_ratio") == [0.412345] * 2
        assert missing(page, "tensor_active_ratio") == []
        assert codes(page) == []


def test_bug_19_of_a_gpu_that_is_split_later_the_counters_are_told_by_its_instances() -> None:
    parts = [
        Line(name, value, 0, instance=("3g.40gb", "1"))
        for name, value in BUSY
        if "_PROF_" in name and "_PCIE_" not in name  # which are the whole GPU's
    ]
    taken = {name.removeprefix("DCGM_FI_"): None for name, _ in BUSY if "_PROF_" in name}
    pages = Pages(render(busy()), render([*busy(0, **taken), *parts]), seconds=10.0)
    pages.collect()
    assert [one.metric for one in pages.collect().missing if one.reason is MissingReason.GONE] == []


def test_bug_19_counters_that_are_blank_say_what_the_page_says() -> None:
    blank = "9223372036854775794"
    pages = Pages(render(busy()), render(busy(PROF_PIPE_TENSOR_ACTIVE=blank)))
    pages.collect()
    (absent,) = missing(pages.collect(), "tensor_active_ratio")
    assert absent.reason is MissingReason.NOT_SUPPORTED


def xids(*numbers: int, count: str = "") -> list[str]:
    pages = []
    for number in numbers:
        lines = busy(DEV_XID_ERRORS=None)
        lines.append(Line("DCGM_FI_DEV_XID_ERRORS", number, labels={"err_code": str(number), "err_msg": "GPU lost"}))
        if count:
            labels = {"window_size_in_ms": "300000", "xid": str(number)}
            lines.append(Line("DCGM_EXP_XID_ERRORS_COUNT", count, labels=labels))
        pages.append(render(lines))
    return pages


def test_bug_20_an_xid_is_told_once_although_it_stays_on_the_page() -> None:
    pages = Pages(*xids(0, 79, 79, 79))
    found = [pages.collect() for _ in range(4)]
    assert [codes(page) for page in found] == [[], ["xid"], [], []]
    (finding,) = found[1].findings
    assert finding.message == "XID 79 (GPU lost)"
    assert finding.labels == (("gpu", "0"), ("uuid", UUIDS[0]), ("xid", "79"))
    assert values(found[3], "xid_last") == [79.0]


def test_bug_20_an_xid_from_before_is_told_as_such() -> None:
    assert codes(collect(xids(31)[0])) == ["xid_earlier"]


def test_bug_20_an_xid_from_before_is_told_for_as_long_as_it_stands_on_the_page() -> None:
    pages = Pages(*xids(79, 79, 79, 48, 79, 79), seconds=10.0)
    found = [pages.collect() for _ in range(6)]
    assert [codes(page) for page in found] == [["xid_earlier"]] * 3 + [["xid"], ["xid"], []]
    (finding,) = found[2].findings
    assert finding.message == "XID 79 (GPU lost) was on the first page: when it came is not known"
    assert finding.labels == (("gpu", "0"), ("uuid", UUIDS[0]), ("xid", "79"))


def test_bug_20_an_xid_from_before_is_not_new_where_its_line_was_away() -> None:
    without = render(busy(DEV_XID_ERRORS=None))
    (page,) = xids(79)
    pages = Pages(page, without, page)
    assert [codes(pages.collect()) for _ in range(3)] == [["xid_earlier"], [], ["xid_earlier"]]


@pytest.mark.parametrize(("before", "first"), [(0, []), (79, ["xid_earlier"])])
@pytest.mark.parametrize(("num_without", "code"), [(4, "gap"), (5, "xid")])
def test_bug_20_the_same_xid_is_new_once_its_line_was_away_for_two_minutes(
    before: int, first: list[str], num_without: int, code: str
) -> None:
    without = render(busy(DEV_XID_ERRORS=None))
    first_page, page = xids(before, 79)
    texts = [first_page, page, *[without] * num_without, page, page]
    pages = Pages(*(text.replace("812345678901", f"8123456789{at:02}") for at, text in enumerate(texts)))
    told = [codes(pages.collect()) for _ in range(num_without + 4)]
    assert told[0] == first
    assert told[2:-2] == [[]] * num_without
    assert told[-2:] == ([["xid"], []] if code == "xid" else [first, first])


@pytest.mark.parametrize("outage", ["gpu", "page", "page after one without"])
def test_bug_20_an_xid_is_not_new_where_its_gpu_or_the_page_was_away_for_long(outage: str) -> None:
    """A GPU that is reset leaves the page for minutes and comes back with the XID that it was reset for."""
    first, page = xids(0, 48)
    away: list[str | PageFetchError] = [PageFetchError(MissingReason.UNREACHABLE, "down")] * 6
    if outage == "gpu":
        away = [render(busy(1))] * 6
    elif outage == "page after one without":
        away = [render(busy(DEV_XID_ERRORS=None)), *away]
    texts = [first, page, *away, page, page]
    pages = Pages(
        *(
            text.replace("812345678901", f"8123456789{at:02}") if isinstance(text, str) else text
            for at, text in enumerate(texts)
        )
    )
    told = [codes(pages.collect()) for _ in texts]
    assert told[1] == ["xid"]
    assert not any("xid" in code for code in told[-2] + told[-1])


def test_bug_20_an_xid_is_not_new_where_the_page_showed_old_values_for_long() -> None:
    """A stale GPU's line stands there all the while."""
    (page,) = xids(79)
    fresh = page.replace("812345678901", "812345679999")
    pages = Pages(page, *[page] * 12, fresh)
    assert [codes(pages.collect()) for _ in range(14)][-1] == ["xid_earlier"]


def test_bug_20_an_xid_from_before_is_told_also_where_the_exporter_counts_those_of_the_last_minutes() -> None:
    (old,) = xids(79)
    counts = Line("DCGM_EXP_XID_ERRORS_COUNT", 0, labels={"window_size_in_ms": "300000", "xid": "79"})
    again = Line("DCGM_EXP_XID_ERRORS_COUNT", 1, labels={"window_size_in_ms": "300000", "xid": "79"})
    pages = Pages(old + render([counts]), old + render([counts]), old + render([again]))
    assert [codes(pages.collect()) for _ in range(3)] == [["xid_earlier"], ["xid_earlier"], ["xid"]]


def test_bug_20_the_same_xid_again_is_seen_where_the_exporter_counts() -> None:
    (page_of_one,), (page_of_two,) = xids(94, count="1"), xids(94, count="2")
    pages = Pages(page_of_one, page_of_one, page_of_two)
    assert [codes(pages.collect()) for _ in range(3)] == [["xid"], [], ["xid"]]
    assert values(collect(page_of_two), "xid_recent", xid="94", window_seconds="300") == [2.0]


def test_bug_25_jobs_and_pods_are_one_info_metric_not_labels_of_every_series() -> None:
    pod = {"container": "train", "namespace": "ml", "pod": "llm-0", "hpc_job": "4711"}
    page = collect(render([Line("DCGM_FI_DEV_GPU_UTIL", 97, labels=pod), Line("DCGM_FI_DEV_FB_USED", 5, labels=pod)]))
    (info,) = readings(page, "workload_info")
    assert {"namespace": "ml", "pod": "llm-0", "container": "train", "job": "4711"}.items() <= dict(info.labels).items()
    assert readings(page, "utilization_ratio")[0].labels == (("gpu", "0"), ("uuid", UUIDS[0]))


def test_bug_25_a_gpu_with_several_jobs_is_counted_once() -> None:
    lines = [Line("DCGM_FI_DEV_POWER_USAGE", "512.0", labels={"hpc_job": job}) for job in ("1", "2", "3")]
    page = collect(render(lines))
    assert values(page, "power_watts") == [512.0]
    assert {dict(r.labels)["job"] for r in readings(page, "workload_info")} == {"1", "2", "3"}


@pytest.mark.parametrize("with_whole", [False, True])
def test_bug_25_jobs_of_a_gpu_without_number_are_few_series_soon_read(with_whole: bool) -> None:
    """Twenty thousand took a core for longer than a page is waited for; each was a series or two."""
    lines = [Line("DCGM_FI_DEV_GPU_UTIL", 1 + job % 9, labels={"hpc_job": str(job)}) for job in range(20_000)]
    if with_whole:
        lines.append(Line("DCGM_FI_DEV_GPU_UTIL", 97))
    text = render(lines)
    begin = time.process_time()
    page = collect(text)
    assert time.process_time() - begin < 5
    told = [dict(reading.labels)["job"] for reading in readings(page, "workload_info")]
    assert told == [str(job) for job in range(64)]
    assert len(readings(page, "workload_utilization_ratio")) == (64 if with_whole else 0)
    (finding,) = page.findings
    assert (finding.code, finding.labels) == ("workloads_left_out", (("gpu", "0"), ("uuid", UUIDS[0])))
    assert finding.message == "20,000 workloads on the page, of which 19,936 are left out"


def test_what_users_wrote_is_cut_and_freed_of_what_cannot_be_seen() -> None:
    labels = {"pod": "p" * 5000, "namespace": "n" * 5000, "hpc_job": "a\x01b\u202ec", "container": "train"}
    page = collect(render([Line("DCGM_FI_DEV_GPU_UTIL", 97, labels=labels)]))
    (info,) = readings(page, "workload_info")
    told = dict(info.labels)
    assert told["pod"] == "p" * 319 + "…"  # a pod's name has 253 letters
    assert told["namespace"] == "n" * 99 + "…"
    assert told["job"] == "a b c"


def test_what_a_page_says_of_a_gpu_is_cut_and_freed_of_what_cannot_be_seen() -> None:
    text = render(busy(DEV_XID_ERRORS=None)).replace("NVIDIA H100 80GB HBM3", "H\x01100" + "x" * 5000)
    xid = {"err_msg": "lost \u202e" + "y" * 5000, "err_code": "79"}
    page = collect(text + render([Line("DCGM_FI_DEV_XID_ERRORS", 79, labels=xid)]))
    (info,) = readings(page, "info")
    assert dict(info.labels)["name"].startswith("H 100x")
    assert len(dict(info.labels)["name"]) == 320
    (finding,) = page.findings
    assert finding.message.isprintable()
    assert len(finding.message) < 500


def test_bug_26_an_idle_gpu_has_no_workload_whether_labels_are_empty_or_absent() -> None:
    empty = {"container": "", "namespace": "", "pod": "", "hpc_job": ""}
    assert readings(collect(render([Line("DCGM_FI_DEV_GPU_UTIL", 0, labels=empty)])), "workload_info") == []


def test_bug_28_what_prometheus_renamed_is_the_workload_and_the_plain_names_are_the_exporters() -> None:
    own = {"pod": "dcgm-exporter-x7", "namespace": "gpu-operator", "container": "exporter"}
    renamed = own | {"exported_pod": "llm-0", "exported_namespace": "ml", "exported_container": "train"}
    page = collect(
        render([Line("DCGM_FI_DEV_GPU_UTIL", 97, labels=renamed), Line("DCGM_FI_DEV_GPU_UTIL", 0, 1, labels=own)])
    )
    (info,) = readings(page, "workload_info")
    assert {"pod": "llm-0", "namespace": "ml", "container": "train", "gpu": "0"}.items() <= dict(info.labels).items()


def test_bug_28_a_pods_own_label_is_not_one_that_prometheus_renamed() -> None:
    labels = {"pod": "llm-0", "exported_by": "x"}
    (info,) = readings(collect(render([Line("DCGM_FI_DEV_GPU_UTIL", 9, labels=labels)])), "workload_info")
    assert dict(info.labels)["pod"] == "llm-0"


def test_bug_28_old_names_of_the_pod() -> None:
    old = {"container_name": "train", "pod_namespace": "ml", "pod_name": "llm-0"}
    (info,) = readings(collect(render([Line("DCGM_FI_DEV_GPU_UTIL", 9, labels=old)], uuid="uuid")), "workload_info")
    assert {"pod": "llm-0", "namespace": "ml", "container": "train"}.items() <= dict(info.labels).items()


def test_bug_29_copies_for_the_pods_of_a_shared_gpu_are_one_value_and_no_shares() -> None:
    lines = [Line("DCGM_FI_DEV_GPU_UTIL", 80, labels={"pod": f"p{n}", "vgpu": str(n)}) for n in range(3)]
    page = collect(render(lines))
    assert values(page, "utilization_ratio") == [0.8]
    assert values(page, "workload_utilization_ratio") == []
    assert len(readings(page, "workload_info")) == 3


def test_bug_29_shares_of_pods_are_told_beside_the_whole() -> None:
    pods = [Line("DCGM_FI_DEV_GPU_UTIL", value, labels={"pod": pod}) for pod, value in (("a", 50), ("b", 30))]
    page = collect(render([Line("DCGM_FI_DEV_GPU_UTIL", 80), *pods]))
    assert values(page, "utilization_ratio") == [0.8]
    assert {dict(r.labels)["pod"]: r.value for r in readings(page, "workload_utilization_ratio")} == {
        "a": 0.5,
        "b": 0.3,
    }


def test_two_values_for_one_thing_are_none() -> None:
    pods = [Line("DCGM_FI_DEV_GPU_TEMP", value, labels={"pod": pod}) for pod, value in (("a", 50), ("b", 30))]
    page = collect(render(pods))
    assert values(page, "temperature_celsius") == []
    assert "2 values" in missing(page, "temperature_celsius")[0].detail


def test_bug_30_values_that_stand_still_are_dropped() -> None:
    pages = Pages(render(busy()))
    found = [pages.collect() for _ in range(5)]
    assert [codes(page) for page in found] == [[], [], [], [], ["stale"]]
    assert values(found[3], "power_watts") == [512.371]
    assert values(found[4], "power_watts") == values(found[4], "up") == []
    assert missing(found[4], "")[0].reason is MissingReason.UNREADABLE
    pages = Pages(render(busy()))
    pages.collect()
    pages.now_ns -= 7200 * SECOND  # the clock is set back
    assert [codes(pages.collect()) for _ in range(5)] == [[], [], [], [], ["stale"]]


def test_bug_30_values_that_move_are_fresh_again() -> None:
    pages = Pages(*[render(busy())] * 5, render(busy(DEV_TOTAL_ENERGY_CONSUMPTION=912345678901)))
    found = [pages.collect() for _ in range(6)]
    assert values(found[5], "power_watts") == [512.371]
    assert codes(found[5]) == []


def test_bug_30_a_line_with_an_old_time_of_its_own_is_dropped() -> None:
    now_ms = 1_700_000_000_000
    page = collect(render([Line("DCGM_FI_DEV_GPU_TEMP", f"50 {now_ms - 96_000}")]))
    assert missing(page, "temperature_celsius")[0].detail == "its line is 96 s old"
    fresh = collect(render([Line("DCGM_FI_DEV_GPU_TEMP", f"50 {now_ms - 20_000}")]))
    (reading,) = readings(fresh, "temperature_celsius")
    assert reading.time_ns == (now_ms - 20_000) * 1_000_000


def test_bug_31_a_gpu_that_vanishes_is_not_on_the_page_and_a_metric_that_vanishes_is_missing() -> None:
    """Also NVIDIA/dcgm-exporter#569, #611: the exporter may list only GPUs in use."""
    both = render([*busy(0), *busy(1)])
    pages = Pages(both, render([*busy(0), *busy(1, DEV_FB_USED=None)]), render(busy(0)), both)
    found = [pages.collect() for _ in range(4)]
    assert [one.reason for one in missing(found[1], "memory_used_bytes", gpu="1")] == [MissingReason.NOT_SUPPORTED]
    assert [one.reason for one in missing(found[2], "", gpu="1")] == [MissingReason.NOT_ON_PAGE]
    assert values(found[2], "up", gpu="1", reason="not_on_page") == [0.0]
    assert values(found[3], "up") == [1.0, 1.0]


def test_bug_22_a_gpu_that_is_gone_is_forgotten_after_a_day() -> None:
    pages = Pages(render([*busy(0), *busy(1)]), render(busy(0)), seconds=43_300)
    found = [pages.collect() for _ in range(3)]
    assert [len(missing(page, "", gpu="1")) for page in found] == [0, 1, 0]


def test_bug_22_pages_with_ever_other_gpus_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_MAX_GPUS", 8)
    text = render(busy())
    pages = Pages(*(text.replace(UUIDS[0], f"GPU-{number}") for number in range(40)), seconds=1)
    gone = [len(missing(pages.collect(), "")) for _ in range(40)]
    assert gone == [*range(9), *[8] * 31]


def test_bug_31_a_metric_of_one_gpu_that_vanishes_is_gone() -> None:
    pages = Pages(render([*busy(0), *busy(1)]), render([*busy(0), *busy(1, DEV_SM_CLOCK=None)]))
    pages.collect()
    (absent,) = missing(pages.collect(), "sm_clock_hertz")
    assert (absent.reason, dict(absent.labels)["gpu"]) == (MissingReason.GONE, "1")


def test_bug_32_the_exporters_host_name_is_not_used() -> None:
    page = collect(render(busy()).replace('Hostname="node7"', 'Hostname="localhost"'))
    assert all("localhost" not in dict(reading.labels).values() for reading in page.readings)


@pytest.mark.parametrize("hostname", ["Hostname", "hostname", "HOSTNAME", ""])
@pytest.mark.parametrize("uuid", ["UUID", "uuid", "gpu_uuid"])
def test_bug_33_labels_in_any_spelling(hostname: str, uuid: str) -> None:
    usual = collect(render(busy()))
    other = collect(render(busy(), hostname=hostname, uuid=uuid))
    assert other == usual


def test_bug_38_the_device_is_no_minor_number() -> None:
    (info,) = readings(collect(render(busy())), "info")
    facts = dict(info.labels)
    assert facts["minor_number"] == ""
    assert facts["pci_bus_id"] == "00000000:01:00.0"
    assert facts["driver"] == "580.159.03"
    assert facts["name"] == "NVIDIA H100 80GB HBM3"


def test_bug_35_and_36_the_total_is_used_and_free_and_reserved_and_never_guessed() -> None:
    assert values(collect(render(busy())), "memory_total_bytes") == [(20000 + 60918 + 641) * 1024**2]
    assert values(collect(render(busy(DEV_FB_RESERVED=None, DEV_BAR1_TOTAL=131072))), "memory_total_bytes") == []
    assert values(collect(render(busy(DEV_FB_TOTAL=81559))), "memory_total_bytes") == [81559 * 1024**2]


def test_bug_48_traffic_of_the_memory_is_not_its_fill_level() -> None:
    assert values(collect(render(busy(DEV_MEM_COPY_UTIL=41))), "memory_bandwidth_busy_ratio") == [0.41]
