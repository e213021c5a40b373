"""Health from pages as dcgm-exporter writes them, look after look: GPUs that leave the page, and DCGM's judgements."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.health_source import HealthWatch
from stepscope.agent.health.samples import HealthObserver
from stepscope.agent.polling import SourceState
from stepscope.collectors.dcgm_exporter.collector import DcgmExporterCollector
from stepscope.collectors.dcgm_exporter.page import Endpoint
from stepscope.core.hardware.health import Health, HealthEvent, HealthState, Severity
from stepscope.core.metrics.readings import GPU, Collection, Missing, MissingReason, Reading, labels_of

_SECOND = 10**9
_NO_DRIVER = Collection(missing=(Missing("", (), MissingReason.NOT_INSTALLED, "no driver"),))


def _uuid(gpu: int) -> str:
    return f"GPU-00000000-1111-4222-8333-44444444444{gpu}"


def _line(field: str, value: object, gpu: int, model: str, further: str = "") -> str:
    return (
        f'{field}{{gpu="{gpu}",UUID="{_uuid(gpu)}",pci_bus_id="00000000:{gpu + 1:02X}:00.0",device="nvidia{gpu}",'
        f'modelName="{model}",Hostname="gpu-node-a",DCGM_FI_DRIVER_VERSION="580.95.05"{further}}} {value}\n'
    )


class _Node:
    """A node with a dcgm-exporter, mostly without a driver that the agent may ask.

    Attributes:
        fields: values of each GPU on the page; one that is taken away leaves the page.
        judgements: DCGM's, by GPU: watch, error and value.
        other_lines: of the page.
        driver: what NVML says.
        kernel_log: XIDs of it, by PCI bus id.
    """

    def __init__(self, num_gpus: int, *, model: str = "NVIDIA H100 80GB HBM3", expected: int = 0) -> None:
        thresholds = HealthThresholds(expected_gpus=expected)
        self.fields: dict[int, dict[str, object]] = {gpu: {} for gpu in range(num_gpus)}
        self.judgements: dict[int, tuple[str, str, int]] = {}
        self.other_lines = ""
        self.driver = _NO_DRIVER
        self.kernel_log: dict[str, int] = {}
        self._model = model
        self._seconds = 0
        self._page = DcgmExporterCollector(
            Endpoint("gpu-node-a", 9400, "/metrics"),
            fetcher=lambda _where, _seconds: self._text(),
            wall_clock_ns=lambda: self._now_ns,
        )
        self._observer = HealthObserver("nvml", thresholds.stale_seconds)
        self._watch = HealthWatch(thresholds)

    @property
    def _now_ns(self) -> int:
        return (1_700_000_000 + self._seconds) * _SECOND

    def _text(self) -> str:
        text = ""
        for gpu, fields in self.fields.items():
            shown = {
                "DCGM_FI_DEV_GPU_TEMP": 60,
                "DCGM_FI_DEV_POWER_USAGE": "300.000000",
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 10**12 + 300_000 * self._seconds,
                "DCGM_FI_DEV_GPU_UTIL": 99,
                "DCGM_FI_DEV_XID_ERRORS": 0,
                "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.990000",
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "0.400000",
                **fields,
            }
            text += "".join(_line(field, value, gpu, self._model) for field, value in shown.items())
            if gpu in self.judgements:
                watch, error, value = self.judgements[gpu]
                further = f',health_watch="{watch}",health_error_code="{error}"'
                text += _line("DCGM_EXP_GPU_HEALTH_STATUS", value, gpu, self._model, further)
        return text + self.other_lines

    def looks(self, seconds: int) -> None:
        """Look every 15 s for so long."""
        for _ in range(seconds // 15):
            self._seconds += 15
            xids = [
                Reading(GPU + "xid_errors_total", 1.0, labels_of(pci_bus_id=place, xid=xid), self._now_ns)
                for place, xid in self.kernel_log.items()
            ]
            states = (
                SourceState("nvml", self.driver, self._now_ns),
                SourceState("dcgm_exporter", self._page.collect(), self._now_ns),
                SourceState("kernel_log", Collection(tuple(xids)), self._now_ns),
            )
            self._watch.step(self._observer.observe(states, self._now_ns), self._now_ns)

    def open(self) -> list[HealthEvent]:
        return list(self._watch.report(self._now_ns).open_events)

    def problems(self) -> list[tuple[str, Severity]]:
        return [(event.code, event.severity) for event in self.open() if event.severity is not Severity.INFO]

    def health(self, gpu: int) -> Health:
        gpus = self._watch.report(self._now_ns).gpus
        return next(health for device, health in gpus.items() if device.uuid == _uuid(gpu))

    def leave(self, gpus: Iterable[int]) -> None:
        for gpu in gpus:
            del self.fields[gpu]

    def come(self, gpus: Iterable[int]) -> None:
        self.fields = {gpu: {} for gpu in sorted((*self.fields, *gpus))}


def test_gpus_that_are_not_in_use_leave_the_page_and_are_no_loss() -> None:
    """NVIDIA/dcgm-exporter#569, #611: with DRA the exporter lists allocated GPUs only."""
    node = _Node(8)
    node.looks(60)
    for _ in range(3):
        node.leave(range(3, 8))
        node.looks(900)
        assert node.open() == []
        assert node.health(5).state is HealthState.UNKNOWN
        assert node.health(5).reason.startswith("not on the page")
        assert node.health(1).state is HealthState.HEALTHY
        node.come(range(3, 8))
        node.looks(120)
        assert node.health(5).state is HealthState.HEALTHY
    assert node.open() == []


def test_a_gpu_that_the_driver_answers_for_is_healthy_on_or_off_the_page() -> None:
    node = _Node(2)
    node.looks(60)
    node.leave([1])
    for _ in range(20):
        up = [
            Reading(GPU + "up", 1.0, labels_of(gpu=gpu, uuid=_uuid(gpu)), (1_700_000_015 + node._seconds) * _SECOND)
            for gpu in range(2)
        ]
        node.driver = Collection(tuple(up))
        node.looks(15)
    assert node.open() == []
    assert node.health(1).state is HealthState.HEALTHY


def test_a_gpu_with_xid_79_on_the_page_is_lost_also_once_it_left() -> None:
    node = _Node(8)
    node.looks(60)
    node.fields[5] = {"DCGM_FI_DEV_XID_ERRORS": 79}
    node.looks(30)
    node.leave([5])
    node.looks(900)
    assert node.problems() == [("gpu_lost", Severity.CRITICAL)]
    assert node.health(5).state is HealthState.FAILED


def test_a_gpu_that_left_and_has_xid_79_in_the_kernel_log_is_lost() -> None:
    node = _Node(8)
    node.looks(60)
    node.leave([5])
    node.looks(60)
    node.kernel_log["00000000:06:00.0"] = 79
    node.looks(900)
    assert node.problems() == [("gpu_lost", Severity.CRITICAL)]
    assert node.health(5).state is HealthState.FAILED
    node.come([5])
    node.looks(120)
    assert node.health(5).state is HealthState.HEALTHY


def test_a_gpu_that_dcgm_fails_and_that_then_leaves_stays_failed() -> None:
    node = _Node(8)
    node.looks(60)
    node.judgements[5] = ("PCIE", "DCGM_FR_FALLEN_OFF_BUS", 20)
    node.looks(30)
    node.leave([5])
    node.looks(900)
    assert node.problems() == [("dcgm_health", Severity.CRITICAL)]
    assert node.health(5).state is HealthState.FAILED


def test_where_the_number_of_gpus_is_set_one_that_left_counts_as_missing() -> None:
    node = _Node(8, expected=8)
    node.looks(60)
    assert node.problems() == []
    node.leave([5])
    node.looks(120)
    (event,) = node.open()
    assert (event.code, event.severity, event.value) == ("gpu_count", Severity.CRITICAL, 7.0)


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({}, Severity.INFO),
        ({"DCGM_FI_DEV_POWER_USAGE": "698.000000", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "700.000000"}, Severity.INFO),
        ({"DCGM_FI_DEV_POWER_USAGE": "800.000000", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "700.000000"}, Severity.WARNING),
        ({"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0x4}, Severity.INFO),  # the software's cap
        ({"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0x88}, Severity.WARNING),  # the power supply's brake
    ],
)
@pytest.mark.parametrize("error", ["DCGM_FR_CLOCK_THROTTLE_POWER", "DCGM_FR_CLOCKS_EVENT_POWER"])
def test_dcgm_s_power_watch_within_the_cap_is_no_fault(
    fields: dict[str, object], severity: Severity, error: str
) -> None:
    node = _Node(1)
    node.fields[0] = fields
    node.looks(120)
    node.judgements[0] = ("POWER", error, 10)
    node.looks(120)
    assert [one.severity for one in node.open() if one.code == "dcgm_health"] == [severity]
    assert (node.health(0).state is HealthState.HEALTHY) is (severity is Severity.INFO)


def test_a_power_that_dcgm_cannot_read_is_a_warning() -> None:
    node = _Node(1)
    node.judgements[0] = ("POWER", "DCGM_FR_POWER_UNREADABLE", 10)
    node.looks(120)
    assert node.problems() == [("dcgm_health", Severity.WARNING)]


def test_dcgm_s_nvlink_watch_on_a_card_without_nvlink_is_no_fault() -> None:
    """NVIDIA/NVSentinel#1481."""
    node = _Node(2, model="NVIDIA L40S")
    node.looks(60)
    node.judgements = dict.fromkeys(range(2), ("NVLINK", "DCGM_FR_NVLINK_DOWN", 20))
    node.looks(600)
    assert node.problems() == []
    assert node.health(1).state is HealthState.HEALTHY


_ERRORS = tuple(f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL" for kind in ("CRC_FLIT", "REPLAY", "RECOVERY"))


@pytest.mark.parametrize(
    ("counts", "growth", "severity"),
    [
        (dict.fromkeys(_ERRORS, 1), 0, Severity.INFO),  # an error of long ago: DCGM fails the GPU until a reset
        (dict.fromkeys(_ERRORS, 1), 1, Severity.CRITICAL),
        ({**dict.fromkeys(_ERRORS[1:], 1), "DCGM_FI_DEV_NVLINK_ERROR_DL_CRC": 1}, 0, Severity.INFO),
        ({_ERRORS[0]: 1}, 0, Severity.CRITICAL),  # the others may grow
        ({}, 0, Severity.CRITICAL),
    ],
)
def test_dcgm_s_nvlink_errors_count_where_they_grow(counts: dict[str, int], growth: int, severity: Severity) -> None:
    node = _Node(1)
    node.judgements[0] = ("NVLINK", "DCGM_FR_NVLINK_ERROR_CRITICAL", 20)
    for times in range(8):
        node.fields[0] = {field: count + growth * times for field, count in counts.items()}
        node.looks(15)
    assert {one.severity for one in node.open() if one.code == "dcgm_health"} == {severity}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"DCGM_FI_DEV_THRESHOLD_SRM": 1}, ("sram_threshold", Severity.CRITICAL)),
        ({"DCGM_FI_DEV_SRAM_EXCEEDED": 1}, ("sram_threshold", Severity.CRITICAL)),
        ({"DCGM_FI_DEV_THRESHOLD_SRM": 0}, None),
        ({"DCGM_FI_DEV_ECC_DBE_VOL_SRM": 2}, ("ecc_uncorrected", Severity.CRITICAL)),
        ({"DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 3, "DCGM_FI_DEV_FABRIC_HEALTH_MASK": 0x1AA}, None),
        ({"DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 0}, None),
        ({"DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 1}, ("fabric_state", Severity.CRITICAL)),
        ({"DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 2}, ("fabric_state", Severity.WARNING)),
        ({"DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 4}, ("fabric_state", Severity.CRITICAL)),
        ({"DCGM_FI_DEV_FABRIC_HEALTH_MASK": 0x19A}, ("fabric_unhealthy", Severity.CRITICAL)),
        ({"DCGM_FI_DEV_FABRIC_HEALTH_MASK": 0x4AA}, ("fabric_unhealthy", Severity.CRITICAL)),
        ({"DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": 1}, None),
        ({"DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": 2}, ("fabric_unhealthy", Severity.CRITICAL)),
        ({"DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": 3}, ("fabric_unhealthy", Severity.WARNING)),
        ({"DCGM_FI_DEV_FABRIC_HEALTH_MASK": 9223372036854775794}, None),  # blank
        ({"DCGM_FI_DEV_GPU_TEMP": -5}, None),
    ],
)
def test_what_dcgm_reports_of_the_die_and_the_fabric(
    fields: dict[str, object], problem: tuple[str, Severity] | None
) -> None:
    node = _Node(1)
    node.fields[0] = fields
    node.looks(240)
    assert node.problems() == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY", "nvlink_replays"),
        ("DCGM_FI_DEV_NVLINK_REPLAY_TOTAL", "nvlink_replays"),
        ("DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY", "nvlink_recoveries"),
        ("DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL", "nvlink_recoveries"),
        ("DCGM_FI_DEV_NVLINK_ERROR_DL_CRC", "nvlink_crc_errors"),
        ("DCGM_FI_DEV_NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS", "nvlink_errors"),
        ("DCGM_FI_DEV_NVLINK_RX_PACKET_DROPPED_TOTAL", "nvlink_errors"),
        ("DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", "nvlink_errors"),
        ("DCGM_FI_DEV_NVLINK_EFFECTIVE_ERROR_TOTAL", "nvlink_errors"),
    ],
)
def test_nvlink_errors_as_dcgm_s_watch_reads_them(field: str, code: str) -> None:
    node = _Node(1)
    for count in range(0, 9000, 1000):
        node.fields[0] = {field: count}
        node.looks(15)
    assert [one.code for one in node.open()] == [code]


def _switch(field: str, value: int, link: str = "") -> str:
    return f'DCGM_FI_DEV_NVSWITCH_{field}{{{link}nvswitch="nvswitch0",hostname="n"}} {value}\n'


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (_switch("RESET_REQUIRED", 0), _switch("RESET_REQUIRED", 1), ("nvswitch_reset", Severity.CRITICAL)),
        (_switch("RESET_REQUIRED", 0), _switch("RESET_REQUIRED", 0), None),
        (
            _switch("LINK_CRC_ERRORS", 5, 'nvlink="3",'),
            _switch("LINK_CRC_ERRORS", 25, 'nvlink="3",'),
            ("nvswitch_errors", Severity.WARNING),
        ),
        (_switch("LINK_CRC_ERRORS", 5, 'nvlink="3",'), _switch("LINK_CRC_ERRORS", 5, 'nvlink="3",'), None),
        (_switch("LINK_ECC_ERRORS", 5, 'nvlink="3",'), _switch("LINK_ECC_ERRORS", 500, 'nvlink="3",'), None),
        (
            _switch("LINK_STATUS", 2, 'nvlink="3",'),
            _switch("LINK_STATUS", 0, 'nvlink="3",'),
            ("nvswitch_link_down", Severity.CRITICAL),
        ),
        (_switch("LINK_STATUS", 0, 'nvlink="3",'), _switch("LINK_STATUS", 0, 'nvlink="3",'), None),  # not connected
        (
            _switch("LINK_STATUS", 0, 'nvlink="3",'),
            _switch("LINK_STATUS", 3, 'nvlink="3",'),
            ("nvswitch_link_down", Severity.CRITICAL),
        ),
        (_switch("LINK_STATUS", 2, 'nvlink="3",'), _switch("LINK_STATUS", -1, 'nvlink="3",'), None),  # unknown
    ],
)
def test_links_of_a_switch(before: str, after: str, problem: tuple[str, Severity] | None) -> None:
    node = _Node(1)
    node.other_lines = before
    node.looks(60)
    assert node.problems() == []
    node.other_lines = after
    node.looks(60)
    assert node.problems() == ([problem] if problem else [])
