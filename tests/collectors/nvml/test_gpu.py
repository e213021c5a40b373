"""NVLinks end at a switch, at another GPU, or nowhere."""

from __future__ import annotations

from stepscope.collectors.nvml.collector import GpuTarget, NvmlCollector
from stepscope.collectors.nvml.gpu import NVSWITCH
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.fake_nvml.profiles import a100, h100


def test_active_links_by_where_they_end(nvml: FakeNvml) -> None:
    nvml.add(h100(0))
    nvml.set(0, nvlink__3=0, nvlink_end_type__4=255)
    ends: dict[str, object] = {f"nvlink_end_type__{link}": 0 for link in range(4)}
    ends |= {f"nvlink_end__{link}": "00000000:0F:00.0" if link else "00000000:2F:00.0" for link in range(4)}
    nvml.add({**a100(1), **ends})
    nvml.write()
    collector = NvmlCollector()
    targets = [collector.target(index) for index in range(2)]
    keys = [target.key for target in targets if isinstance(target, GpuTarget)]
    assert collector.nvlink_ends(keys[0]) == {NVSWITCH: 16}
    assert collector.nvlink_ends(keys[1]) == {"00000000:2F:00.0": 1, "00000000:0F:00.0": 3}
    collector.close()
