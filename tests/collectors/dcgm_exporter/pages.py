"""Pages as dcgm-exporter writes them, of any of its versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.collectors.dcgm_exporter.collector import DcgmExporterCollector
from stepscope.collectors.dcgm_exporter.page import Endpoint, PageFetchError
from stepscope.core.metrics.readings import GPU, Collection, Missing, Reading

UUIDS = ("GPU-9f7b6a52-1d0c-5f4e-8a11-0c2d3e4f5a6b", "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9")
SECOND = 1_000_000_000
ENDPOINT = Endpoint("node7", 9400, "/metrics")


@dataclass(frozen=True)
class Line:
    """One sample of a GPU: its field and value, and what is beside the common labels."""

    name: str
    value: object
    gpu: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    instance: tuple[str, str] | None = None  # profile, id


def render(lines: Sequence[Line], *, hostname: str = "Hostname", uuid: str = "UUID") -> str:
    """The page, in the order and with the spaces of the exporter's templates (render_metrics.go)."""
    by_field: dict[str, list[Line]] = {}
    for line in lines:
        by_field.setdefault(line.name, []).append(line)
    text = ""
    for name, samples in by_field.items():
        text += f"# HELP {name} Something (in units).\n# TYPE {name} gauge"
        for line in samples:
            text += f'\n{name}{{gpu="{line.gpu}",{uuid}="{UUIDS[line.gpu]}",pci_bus_id="00000000:0{line.gpu + 1}:00.0"'
            text += f',device="nvidia{line.gpu}",modelName="NVIDIA H100 80GB HBM3"'
            if line.instance:
                text += f',GPU_I_PROFILE="{line.instance[0]}",GPU_I_ID="{line.instance[1]}"'
            text += f',{hostname}="node7"' if hostname else ""
            text += "".join(f',{key}="{value}"' for key, value in line.labels.items())
            text += f"}} {line.value}"
        text += "\n"
    return text


BUSY: tuple[tuple[str, object], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", 1980),
    ("DCGM_FI_DEV_MEM_CLOCK", 2619),
    ("DCGM_FI_DEV_MEMORY_TEMP", 61),
    ("DCGM_FI_DEV_GPU_TEMP", 52),
    ("DCGM_FI_DEV_POWER_USAGE", "512.371000"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 812345678901),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 0),
    ("DCGM_FI_DEV_GPU_UTIL", 97),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", 41),
    ("DCGM_FI_DEV_ENC_UTIL", 0),
    ("DCGM_FI_DEV_DEC_UTIL", 0),
    ("DCGM_FI_DEV_XID_ERRORS", 0),
    ("DCGM_FI_DEV_FB_FREE", 20000),
    ("DCGM_FI_DEV_FB_USED", 60918),
    ("DCGM_FI_DEV_FB_RESERVED", 641),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 150),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 0),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 0),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0.961200"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.412345"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "0.331000"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", 12345678),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", 23456789),
)
"""Fields of the default list on a GPU that trains, without SM_ACTIVE and without any limit."""


def busy(gpu: int = 0, /, **changed: object) -> list[Line]:
    """Lines of a busy GPU; of keywords, the field without DCGM_FI_ and its value, None to leave it out."""
    values = dict(BUSY) | {f"DCGM_FI_{name}": value for name, value in changed.items()}
    labels = {"DCGM_FI_DRIVER_VERSION": "580.159.03"}
    return [Line(name, value, gpu, labels) for name, value in values.items() if value is not None]


class Pages:
    """A collector that is served these pages, one after the other, the last for ever.

    Attributes:
        now_ns: the time, ns since the epoch.
    """

    def __init__(self, *pages: str | PageFetchError, seconds: float = 30.0) -> None:
        self._pages = list(pages)
        self._seconds = seconds
        self.now_ns = 1_700_000_000 * SECOND
        self.collector = DcgmExporterCollector(ENDPOINT, fetcher=self._fetch, wall_clock_ns=lambda: self.now_ns)

    def _fetch(self, _endpoint: Endpoint, _seconds: float) -> str:
        page = self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]
        if isinstance(page, PageFetchError):
            raise page
        return page

    def collect(self) -> Collection:
        """The next page, read; then time goes on."""
        collection = self.collector.collect()
        self.now_ns += int(self._seconds * SECOND)
        return collection


def collect(page: str) -> Collection:
    """One page, read."""
    return Pages(page).collect()


def readings(collection: Collection, name: str, **labels: str) -> list[Reading]:
    """Those of a GPU metric with these labels."""
    return [
        reading
        for reading in collection.readings
        if reading.metric == GPU + name and labels.items() <= dict(reading.labels).items()
    ]


def values(collection: Collection, name: str, **labels: str) -> list[float]:
    """Their values."""
    return [reading.value for reading in readings(collection, name, **labels)]


def missing(collection: Collection, name: str, **labels: str) -> list[Missing]:
    """What is missing of a GPU metric; "" is all of a GPU."""
    return [
        one
        for one in collection.missing
        if one.metric == (GPU + name if name else "") and labels.items() <= dict(one.labels).items()
    ]


def codes(collection: Collection) -> list[str]:
    """Of its findings."""
    return [finding.code for finding in collection.findings]
