"""Each value is reported once, whatever a page repeats and however it spells it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.metrics import Unit
from stepscope.core.metrics.gpu import BY_DCGM_NAME
from stepscope.core.metrics.readings import Collection
from tests.collectors.dcgm_exporter.pages import Line, collect, render

_FIELDS = {
    name: metric
    for name, metric in BY_DCGM_NAME.items()
    if metric.unit in (Unit.BYTES, Unit.HERTZ, Unit.WATTS, Unit.JOULES) and metric.dcgm
}
truths = st.dictionaries(
    st.tuples(st.integers(0, 1), st.sampled_from(sorted({metric.name for metric in _FIELDS.values()}))),
    st.integers(0, 2_000_000),
    min_size=1,
    max_size=20,
)
jobs = st.lists(st.text("0123456789_.", min_size=1, max_size=6), max_size=3, unique=True)


@given(truths, jobs, st.sampled_from(["Hostname", "hostname", ""]), st.sampled_from(["UUID", "uuid"]), st.data())
def test_a_page_gives_back_what_went_into_it(
    truth: dict[tuple[int, str], int], of_jobs: list[str], hostname: str, uuid: str, data: st.DataObject
) -> None:
    lines = []
    expected = {}
    for (gpu, metric), value in truth.items():
        spellings = [name for name, row in sorted(_FIELDS.items()) if row.name == metric]
        dcgm = _FIELDS[spellings[0]].dcgm
        assert dcgm is not None
        expected[gpu, metric] = value * dcgm.scale
        for name in data.draw(st.lists(st.sampled_from(spellings), min_size=1, max_size=2, unique=True)):
            lines += [Line(name, value, gpu, {"hpc_job": job}) for job in of_jobs] or [Line(name, value, gpu)]
    lines = data.draw(st.permutations(lines))
    collection = collect(render(lines, hostname=hostname, uuid=uuid))
    found = _values(collection)
    derived = "stepscope_gpu_memory_total_bytes"
    for key, ours in expected.items():
        assert abs(found[key] - ours) <= 1e-9 * abs(ours)
    assert {key for key in found if key not in expected and key[1] != derived} == set()
    assert len([r for r in collection.readings if r.metric.endswith("workload_info")]) == len(of_jobs) * len(
        {gpu for gpu, _ in truth}
    )


def _values(collection: Collection) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], float] = {}
    for reading in collection.readings:
        if reading.metric.rpartition("_gpu_")[2] in ("info", "up", "workload_info"):
            continue
        key = int(dict(reading.labels)["gpu"]), reading.metric
        assert key not in found, "told twice"
        found[key] = reading.value
    return found


@given(st.text())
def test_any_page_is_read_without_an_error(text: str) -> None:
    collect(text + "\n")


_PIECES = (
    *(
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    ),
    *("{", "}", '"', ",", "=", " ", "\n", "0", "7", "-1", "1e999", "NaN", "\\", "MIG-", "GPU-1", "gpu=", 'gpu="0"'),
    *('UUID="GPU-1"', 'GPU_I_ID="x"', 'nvlink="0"', 'nvswitch="s"', 'cpu="0"', 'xid="79"', 'window_size_in_ms="²"'),
    *('DCGM_FI_CUDA_DRIVER_VERSION="13000"', "9223372036854775807", "99999999999999999999"),
)


@given(st.lists(st.sampled_from(_PIECES), max_size=60).map("".join))
def test_any_pieces_of_a_page_are_read_without_an_error(text: str) -> None:
    collect(text + "\n")


def test_numbers_of_thousands_of_digits_cost_their_own_line_alone() -> None:
    """Python refuses to convert them; labels of jobs and pods reach the page as their users wrote them."""
    gpu, digits = 'gpu="0",UUID="GPU-0"', "9" * 5000
    page = collect(
        f"DCGM_FI_DEV_GPU_TEMP{{{gpu}}} {digits}\n"
        f"DCGM_FI_DEV_SM_CLOCK{{{gpu}}} 1200 {digits}\n"
        f'DCGM_EXP_XID_ERRORS_COUNT{{{gpu},xid="13",window_size_in_ms="{digits}"}} 1\n'
        f'DCGM_FI_DEV_MEM_CLOCK{{{gpu},DCGM_FI_CUDA_DRIVER_VERSION="{digits}"}} 1593\n'
        f"DCGM_FI_DEV_POWER_USAGE{{{gpu}}} 100.5\n"
    )
    told = {reading.metric: reading.value for reading in page.readings}
    assert told["stepscope_gpu_power_watts"] == 100.5
    assert "stepscope_gpu_temperature_celsius" not in told
