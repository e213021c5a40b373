"""GPU catalogue: driver device names match the right card, and its rates are plausible."""

from __future__ import annotations

import pytest

from stepscope.core.hardware.gpu_catalogue import (
    BOARD_WATTS,
    GPU_MODELS,
    GpuModel,
    board_power_watts,
    find_gpu,
    nvlink_of,
)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PG509-200", "A100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-DGXS-32GB", "V100-DGXS"),
        ("Tesla V100S-PCIE-32GB", "V100S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("AMD Instinct MI250X", "MI250X"),
        ("AMD Instinct MI250X / MI250", "MI250X"),
    ],
)
def test_a_device_name_finds_its_card(device: str, expected: str) -> None:
    model = find_gpu(device)
    assert model is not None
    assert model.name == expected


@pytest.mark.parametrize(
    "device",
    [None, "", "Intel(R) Data Center GPU Max 1550", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
     "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A1000"],
)  # fmt: skip
def test_other_cards_and_slices_are_not_taken_for_a_known_one(device: str | None) -> None:
    assert find_gpu(device) is None


@pytest.mark.parametrize("model", GPU_MODELS, ids=lambda model: model.name)
def test_dense_rates_are_in_the_order_that_hardware_has_them(model: GpuModel) -> None:
    flops = model.dense_flops
    assert flops["float16"] >= flops.get("bfloat16", 0.0) >= flops.get("tfloat32", 0.0)
    assert flops.get("tfloat32", flops["float32"]) >= flops["float32"] >= flops.get("float64", 0.0)
    if "float8" in flops:
        assert flops["float8"] == pytest.approx(2 * flops["float16"], rel=0.03)
    assert 3e11 <= model.memory_bytes_per_second <= 8e12
    assert model.source


def test_no_row_hides_behind_one_above_it() -> None:
    for model in GPU_MODELS:
        assert find_gpu(f"NVIDIA {model.name}") is model


def test_matrix_units_serve_double_precision() -> None:
    hopper, ampere = find_gpu("NVIDIA H100 80GB HBM3"), find_gpu("NVIDIA A100-SXM4-40GB")
    assert hopper is not None
    assert ampere is not None
    assert hopper.peak_flops("float64") == pytest.approx(66.9e12)
    assert ampere.peak_flops("float64") == pytest.approx(19.5e12)


@pytest.mark.parametrize(
    ("device", "dtype", "tera", "operations_per_cycle", "gigahertz"),
    [
        ("AMD Instinct MI350X", "float16", 2306.9, 4096, 2.2),
        ("AMD Instinct MI350X", "float8", 4613.7, 8192, 2.2),
        ("AMD Instinct MI350X", "float32", 144.2, 256, 2.2),
        ("AMD Instinct MI350X", "float64", 72.1, 128, 2.2),
        ("AMD Instinct MI355X", "float16", 2516.6, 4096, 2.4),
        ("NVIDIA A10G", "float32", 35.0, 256, 1.71),
        ("NVIDIA A10G", "float16", 70.0, 512, 1.71),
        ("NVIDIA H800 PCIe", "float16", 756.5, 4096, 1.62),
    ],
)
def test_rates_follow_from_units_and_clock(
    device: str, dtype: str, tera: float, operations_per_cycle: int, gigahertz: float
) -> None:
    model = find_gpu(device)
    assert model is not None
    assert model.peak_flops(dtype) == pytest.approx(tera * 1e12)
    assert model.num_sms * operations_per_cycle * gigahertz * 1e9 == pytest.approx(tera * 1e12, rel=0.005)


def test_blackwell_ultra_gave_up_double_precision() -> None:
    for device, tera in (("NVIDIA B300 SXM6 AC", 1.25), ("NVIDIA GB300", 1.3)):
        model = find_gpu(device)
        assert model is not None
        assert model.peak_flops("float64") == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("name", "watts"),
    [
        ("NVIDIA H100 80GB HBM3", 700),
        ("NVIDIA H100 PCIe", 350),
        ("NVIDIA A100-SXM4-40GB", 400),
        ("NVIDIA A100-PCIE-40GB", 250),
        ("NVIDIA A10", 150),
        ("Tesla T4", 70),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA of tomorrow", None),
    ],
)
def test_power_that_the_data_sheet_allows(name: str, watts: float | None) -> None:
    assert board_power_watts(name) == watts


def test_no_row_of_board_power_hides_a_later_one() -> None:
    names = [words for words, _ in BOARD_WATTS]
    assert [board_power_watts(f"NVIDIA {words}") for words in names] == [watts for _, watts in BOARD_WATTS]


def test_every_gpu_of_the_catalogue_has_a_memory() -> None:
    sizes = {model.name: model.memory_gib for model in GPU_MODELS}
    assert (sizes["H100"], sizes["A100"], sizes["RTX 2080 Ti"], sizes["MI250X"]) == (80, 40, 11, 64)
    assert all(11 <= size <= 288 for size in sizes.values())


@pytest.mark.parametrize(
    ("devices", "nvlink"),
    [
        (("NVIDIA L40S", "Tesla T4", "NVIDIA A10G", "NVIDIA RTX 6000 Ada Generation", "Tesla V100-PCIE-16GB"), "none"),
        (("NVIDIA GeForce RTX 4090", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX A4000"), "none"),
        (("NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA A100-PCIE-40GB", "NVIDIA A40", "NVIDIA RTX A6000"), "bridge"),
        (("Quadro RTX 8000", "NVIDIA GeForce RTX 3090 Ti"), "bridge"),
        (("NVIDIA H100 80GB HBM3", "NVIDIA H20", "NVIDIA A100-SXM4-80GB", "NVIDIA GB200", "NVIDIA B200"), "built_in"),
        (("Tesla V100-SXM2-32GB", "Tesla P100-SXM2-16GB"), "built_in"),
        (("", "NVIDIA Thor", "AMD Instinct MI300X"), None),
    ],
)
def test_which_cards_have_nvlink(devices: tuple[str, ...], nvlink: str | None) -> None:
    assert {nvlink_of(device) for device in devices} == {nvlink}
