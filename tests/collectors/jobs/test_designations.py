"""Device lookup: each name means one device or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.jobs.devices import (
    DeviceUsage,
    devices_visible_to_cuda,
    dra_device,
    find_by_minor,
    find_by_number,
    find_by_uuid,
    is_gpu_name,
    parse_device_list,
    plugin_device,
)
from stepscope.core.hardware.devices import Device

_A, _B = "GPU-aaaaaaaa-0000", "GPU-aaaabbbb-0000"
_WHOLE_A = DeviceUsage(Device(_A, "0"), gpu_uuid=_A, minor="1")
_WHOLE_B = DeviceUsage(Device(_B, "1"), gpu_uuid=_B, minor="0")
_SAME = DeviceUsage(Device("GPU-c", "2"), gpu_uuid="GPU-c", minor="2")
_MIG_7 = DeviceUsage(Device("MIG-7", "3", "7", profile="1g.10gb"), gpu_uuid="GPU-d", minor="3")
_MIG_8 = DeviceUsage(Device("MIG-8", "3", "8", profile="1g.10gb"), gpu_uuid="GPU-d", minor="3")
_MIG_9 = DeviceUsage(Device("MIG-9", "3", "9", profile="3g.40gb"), gpu_uuid="GPU-d", minor="3")
_ALL = (_WHOLE_A, _WHOLE_B, _SAME, _MIG_7, _MIG_8, _MIG_9)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (_A, _WHOLE_A),
        ("GPU-aaaaa", _WHOLE_A),  # its beginning, as CUDA takes it
        ("GPU-aaaa", None),  # that of two
        ("GPU-", None),
        ("MIG-9", _MIG_9),
        ("MIG-GPU-d/8/0", _MIG_8),  # drivers before 470
        ("MIG-GPU-d/5/0", None),
        ("0", None),
        ("", None),
    ],
)
def test_uuids(name: str, device: DeviceUsage | None) -> None:
    assert find_by_uuid(_ALL, name) is device


@pytest.mark.parametrize(
    ("number", "device"), [("0", _WHOLE_B), ("1", _WHOLE_A), ("2", _SAME), ("3", None), ("x", None)]
)
def test_minor_numbers(number: str, device: DeviceUsage | None) -> None:
    assert find_by_minor(_ALL, number) is device


def test_a_number_without_a_kind_means_a_gpu_where_all_kinds_agree() -> None:
    assert [find_by_number(_ALL, str(number)) for number in range(4)] == [None, None, _SAME, None]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0,2-4", ["0", "2", "3", "4"]),
        (" 1 , GPU-a", ["1", "GPU-a"]),
        ("NoDevFiles", []),
        ("", []),
        ("4-2", []),
        ("0-9999", ["0-9999"]),
    ],
)
def test_lists(text: str, names: list[str]) -> None:
    assert parse_device_list(text) == names


@pytest.mark.parametrize(
    ("name", "device", "is_share"),
    [
        (_A, _WHOLE_A, False),
        (f"{_A}::13", _WHOLE_A, True),
        ("MIG-8::0", _MIG_8, True),
        ("nvidia0", _WHOLE_B, False),
        ("nvidia0/vgpu3", _WHOLE_B, True),
        ("nvidia3/gi9", _MIG_9, False),
        ("nvidia3", None, False),
        ("0", None, False),
    ],
)
def test_names_of_device_plugins(name: str, device: DeviceUsage | None, is_share: bool) -> None:
    assert plugin_device(_ALL, name) == (device, is_share)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("gpu-0", _WHOLE_B),
        ("gpu-3", None),
        ("gpu-3-mig-3g40gb-9-0", _MIG_9),
        ("gpu-3-mig-1g10gb-19-0", None),  # one of two
        ("gpu-3-mig-19-0-1", None),
        ("gpu-3-mig-", None),
        ("eth0", None),
    ],
)
def test_names_of_claims(name: str, device: DeviceUsage | None) -> None:
    assert dra_device(_ALL, name) is device


def test_what_a_process_may_see() -> None:
    assert devices_visible_to_cuda(_ALL, f"MIG-7, {_B},GPU-none,0") == [_MIG_7, _WHOLE_B]
    assert devices_visible_to_cuda(_ALL, "0,1") == []


@given(st.text(max_size=40))
def test_no_text_does_harm(text: str) -> None:
    parse_device_list(text)
    devices_visible_to_cuda(_ALL, text)
    dra_device(_ALL, text)
    device, _ = plugin_device(_ALL, text)
    assert device is None or is_gpu_name(text)
