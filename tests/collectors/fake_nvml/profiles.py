"""Answers of GPUs, with values as from real ones of these kinds."""

from __future__ import annotations

_GIB, _MIB = 1024**3, 1024**2
_ALL_LINKS = 2**32 - 1


def _any(index: int) -> dict[str, object]:
    return {
        "uuid": f"GPU-{index:08x}-0000-4000-8000-000000000000",
        "pci_bus_id": f"00000000:{0x0F + 0x10 * index:02X}:00.0",
        "minor": 7 - index,
        "serial": 1650000000 + index,
        "power_mw": 71_722,
        "power_limit_mw": 700_000,
        "power_limit_default_mw": 700_000,
        "energy_mj": 1_234_567_890,
        "pstate": 0,
        "throttle_mask": 0x1,
        "clock__1": 345,
        "clock__2": 2619,
        "clock__3": 765,
        "clock_max__1": 1980,
        "clock_max__2": 2619,
        "temperature__0": 34,
        "threshold__0": 92,
        "threshold__1": 89,
        "utilization": 0,
        "utilization_memory": 0,
        "encoder": 0,
        "decoder": 0,
        "bar1_total": 128 * _GIB,
        "bar1_used": 4 * _MIB,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_replays": 0,
        "ecc_mode": 1,
        "ecc__0__0": 0,
        "ecc__1__0": 0,
        "ecc__0__1": 3,
        "ecc__1__1": 0,
        "remap_corrected": 1,
        "remap_uncorrected": 0,
        "remap_pending": 0,
        "remap_failed": 0,
        "remap_banks__0": 2559,
        "remap_banks__1": 1,
        "remap_banks__2": 0,
        "remap_banks__3": 0,
        "remap_banks__4": 0,
        "compute__count": 0,
        "graphics__count": 0,
        "mps__count": 0,
        "use__count": 0,
        "mig_mode": 0,
        "field__82": "u 41",
        "field__186": "u 72478",
        **{f"field__{policy}": "c 0" for policy in range(74, 80)},
    }


def h100(index: int) -> dict[str, object]:
    """An H100 SXM at rest: 18 NVLinks, GPM, fabric, no fan."""
    return {
        **_any(index),
        "name": "NVIDIA H100 80GB HBM3",
        "architecture": 9,
        "vbios": "96.00.74.00.01",
        "memory_total": 81_559 * _MIB,
        "memory_reserved": 551 * _MIB,
        "memory_used": 480 * _MIB,
        "margin": 53,
        "gpm": 1,
        **{f"gpm__{metric}": 0.0 for metric in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 60, 61)},
        "gpm__20": 0.515,
        "gpm__21": 0.342,
        **{f"nvlink__{link}": 1 for link in range(18)},
        **{f"nvlink_end_type__{link}": 2 for link in range(18)},
        f"field__138__{_ALL_LINKS}": "c 1000",
        f"field__139__{_ALL_LINKS}": "c 2000",
        "field__197": "c 5000",
        "field__198": "c 7000",
        "field__38": "c 0",
        "field__45": "c 0",
        "field__52": "c 0",
        "field__59": "c 0",
        "field__230": "u 0",
        "fabric_state": 3,
        "fabric_status": 0,
        "fabric_health": 0b10101010 | 1 << 8,
        "fabric_summary": 1,
        "sram_exceeded": 0,
    }


def b200(index: int) -> dict[str, object]:
    """A B200 at rest: NVLink 5 counts bytes in fields of its own."""
    other = {key: value for key, value in h100(index).items() if key not in {"field__38", "field__45"}}
    del other[f"field__138__{_ALL_LINKS}"], other[f"field__139__{_ALL_LINKS}"]
    return {
        **other,
        "name": "NVIDIA B200",
        "architecture": 10,
        f"field__202__{_ALL_LINKS}": "c 123456789",
        f"field__204__{_ALL_LINKS}": "c 987654321",
        f"field__220__{_ALL_LINKS}": f"c {15 << 8 | 255}",  # no error
        f"field__222__{_ALL_LINKS}": f"c {3 << 8 | 12}",
        f"field__208__{_ALL_LINKS}": "c 0",
        f"field__211__{_ALL_LINKS}": "c 0",
        f"field__214__{_ALL_LINKS}": "c 0",
        f"field__215__{_ALL_LINKS}": "c 2",
    }


def a100(index: int) -> dict[str, object]:
    """An A100 SXM at rest: no GPM, 12 NVLinks, throttle reasons under their old name."""
    other = _any(index)
    del other["throttle_mask"]
    return {
        **other,
        "name": "NVIDIA A100-SXM4-80GB",
        "architecture": 7,
        "vbios": "92.00.45.00.03",
        "throttle_mask_old": 0x1,
        "memory_total": 81_920 * _MIB,
        "memory_reserved": 912 * _MIB,
        "memory_used": 8 * _MIB,
        **{f"nvlink__{link}": 1 for link in range(12)},
        f"field__138__{_ALL_LINKS}": "c 1000",
        f"field__139__{_ALL_LINKS}": "c 2000",
        "pcie_generation": 4,
        "pcie_generation_max": 4,
    }


def mig_instance(gpu: int, slot: int, *, gpu_instance: int, compute_instance: int = 0) -> dict[str, object]:
    """A 1g.10gb instance of an H100, as keys of that GPU."""
    prefix = f"mig__{slot}__"
    return {
        f"{prefix}uuid": f"MIG-{gpu:04x}{slot:04x}-0000-4000-8000-000000000000",
        f"{prefix}name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        f"{prefix}gpu_instance": gpu_instance,
        f"{prefix}compute_instance": compute_instance,
        f"{prefix}memory_total": 9_984 * _MIB,
        f"{prefix}memory_reserved": 0,
        f"{prefix}memory_used": 14 * _MIB,
        **{f"{prefix}gpm__{metric}": 10.0 * (slot + 1) for metric in (1, 2, 3, 5, 10)},
    }
