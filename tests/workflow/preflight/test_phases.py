"""Preflight distinguishes good GPUs from slow, hanging, dying, faulty and lost ones, and tests the others."""

from __future__ import annotations

import pytest

from stepscope.core.documents.machine_checks import CHECKS, CheckGroup, CheckResult, Outcome, Preflight
from stepscope.core.errors import DataError, UnreachableError
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.fake_nvml.profiles import mig_instance
from tests.workflow.preflight.conftest import RunNode
from tests.workflow.preflight.fake_devices import uuid_of

_RATES = frozenset({CheckGroup.MEMORY, CheckGroup.MATMUL, CheckGroup.HOST})


def found(preflight: Preflight, check: str, *gpus: int) -> CheckResult:
    (result,) = (one for one in preflight.checks if one.check == check and one.gpus == gpus)
    return result


def test_good_gpus_pass_every_check(run_node: RunNode) -> None:
    preflight = run_node()
    assert [check for check in preflight.checks if check.outcome in (Outcome.WARN, Outcome.FAIL)] == []
    assert preflight.outcome is Outcome.PASS
    assert [gpu.index for gpu in preflight.gpus] == [0, 1, 2, 3]
    assert {check.check for check in preflight.checks} == set(CHECKS) - {"start"}
    assert preflight.versions == {"torch": "2.9.0", "cuda": "12.8", "driver": "580.159.03"}
    memory = found(preflight, "memory_bandwidth", 2)
    assert memory.value == pytest.approx(2.9e12)
    assert memory.expected == pytest.approx(3350e9 * 0.82)
    assert found(preflight, "peer_copy", 0, 3).expected == pytest.approx(450e9 * 0.8)
    assert found(preflight, "all_reduce", 0, 1, 2, 3).value == pytest.approx(365e9)
    assert found(preflight, "results_float8", 0).outcome is Outcome.SKIPPED
    assert preflight.gpus[0].sm_clock_hertz == (345e6, 345e6)
    assert preflight.gpus[0].uuid == uuid_of(0).removeprefix("GPU-")


def test_slow_wrong_hanging_dying_and_failing_gpus_are_named_and_nothing_else(run_node: RunNode) -> None:
    preflight = run_node(
        {
            uuid_of(0): {"slow": {"copy": 0.6, "bfloat16": 0.8}},
            uuid_of(1): {"hang": "multiply"},
            uuid_of(2): {"die": "upload", "differing": 2},
            uuid_of(3): {"error": "check_products"},
        },
        seconds=4.0,
    )
    assert preflight.outcome is Outcome.FAIL
    memory = found(preflight, "memory_bandwidth", 0)
    assert memory.outcome is Outcome.FAIL
    assert memory.detail == "63% of what such a GPU gives"
    assert found(preflight, "memory_bandwidth", 1).outcome is Outcome.PASS
    assert found(preflight, "matmul_bfloat16", 0).outcome is Outcome.WARN
    hung = found(preflight, "matmul_bfloat16", 1)
    assert hung.outcome is Outcome.FAIL
    assert hung.detail.startswith("no answer within 4 s; the GPU or its driver hangs")
    assert found(preflight, "matmul_float8", 1) == CheckResult(
        "matmul_float8", (1,), Outcome.SKIPPED, "not made after matmul_bfloat16 failed"
    )
    differing = found(preflight, "results_float32", 2)
    assert differing.outcome is Outcome.FAIL
    assert differing.value == 2
    assert differing.detail.startswith("2 of 20 repeats of one product have other bits")
    died = found(preflight, "host_to_device", 2)
    assert died.outcome is Outcome.FAIL
    assert died.detail.startswith("its process ended with SIGABRT: Xid: the device is lost; ")
    failed = found(preflight, "results_bfloat16", 3)
    assert failed.outcome is Outcome.FAIL
    assert failed.detail.startswith("RuntimeError: CUDA error: uncorrectable ECC error encountered; ")
    assert found(preflight, "all_reduce", 0).detail == "needs two working GPUs"
    assert [gpu.outcome for gpu in preflight.gpus] == [Outcome.FAIL] * 4


def test_a_hang_between_gpus_fails_that_pair_and_an_all_reduce_names_who_does_not_answer(run_node: RunNode) -> None:
    faults = {uuid_of(3): {"hang": "copy_to_peer"}, uuid_of(2): {"hang": "all_reduce"}}
    groups = frozenset({CheckGroup.PEERS, CheckGroup.ALL_REDUCE})
    preflight = run_node(faults, groups=groups, gpus=("2", "3"), seconds=3.0)
    assert found(preflight, "peer_copy", 2, 3).detail.startswith("no answer within 3 s")
    assert found(preflight, "all_reduce", 2, 3).detail.startswith("GPU 2: no answer within 3 s")


def test_less_than_the_neighbours_give_is_worth_a_warning_and_a_wrong_byte_is_a_failure(run_node: RunNode) -> None:
    faults = {uuid_of(2): {"slow": {"copy": 0.88}}, uuid_of(0): {"wrong_upload": 8}, uuid_of(3): {"wrong_bytes": 4}}
    preflight = run_node(faults, groups=_RATES | {CheckGroup.PEERS})
    slow = found(preflight, "memory_bandwidth", 2)
    assert slow.outcome is Outcome.WARN
    assert slow.detail.startswith("12% less than the other GPUs")
    wrong = found(preflight, "host_to_device", 0)
    assert (wrong.outcome, wrong.detail.partition(":")[0]) == (Outcome.FAIL, "8 bytes are wrong")
    assert found(preflight, "peer_copy", 1, 2).outcome is Outcome.PASS
    assert found(preflight, "peer_copy", 1, 3).detail.startswith("4 bytes are wrong")
    assert found(preflight, "memory_bandwidth", 1).outcome is Outcome.PASS


def test_what_the_driver_tells_of_each_gpu(run_node: RunNode, machine: FakeNvml) -> None:
    machine.set(0, ecc__1__0=1, throttle_mask=0x8)
    machine.set(1, remap_pending=1, pcie_width=8, nvlink__7=0)
    machine.set(2, remap_failed=1, fabric_state=1, compute__count=1, compute__0__pid=4711, compute__0__memory=1024)
    machine.set(3, throttle_mask=0x24, ecc_mode=0, pcie_generation=3)
    machine.write()
    preflight = run_node(groups=frozenset({CheckGroup.STATE, CheckGroup.MEMORY}))
    outcomes = {
        (check.check, check.gpus[0]): check.outcome
        for check in preflight.checks
        if check.outcome in (Outcome.WARN, Outcome.FAIL)
    }
    assert outcomes.pop(("throttling", 0)) in (Outcome.WARN, Outcome.FAIL)  # by how many samples there was time for
    assert outcomes == {
        ("ecc", 0): Outcome.FAIL,
        ("row_remap", 1): Outcome.FAIL,
        ("pcie_link", 1): Outcome.FAIL,
        ("nvlink", 1): Outcome.FAIL,
        ("row_remap", 2): Outcome.FAIL,
        ("fabric", 2): Outcome.FAIL,
        ("in_use", 2): Outcome.WARN,
        ("throttling", 3): Outcome.WARN,
        ("ecc", 3): Outcome.WARN,
        ("pcie_link", 3): Outcome.WARN,
    }
    assert found(preflight, "pcie_link", 1).detail.startswith("x8 of x16 lanes")
    assert "pid 4711" in found(preflight, "in_use", 2).detail


def test_where_one_lost_gpu_hides_all_from_cuda_each_other_is_tried_alone(run_node: RunNode, machine: FakeNvml) -> None:
    machine.set(1, lost=1)
    machine.write()
    lost = {uuid_of(1): {"gone": True}}
    preflight = run_node(lost, groups=frozenset({CheckGroup.STATE, CheckGroup.MEMORY}))
    assert found(preflight, "driver", 1).outcome is Outcome.FAIL
    assert "XID 79" in found(preflight, "driver", 1).detail
    assert found(preflight, "memory_bandwidth", 3).outcome is Outcome.PASS
    assert [(gpu.index, gpu.name) for gpu in preflight.gpus] == [(i, "NVIDIA H100 80GB HBM3") for i in (0, 2, 3)]
    assert [notice.code for notice in preflight.warnings] == ["cuda_sees_no_gpu"]


def test_a_driver_that_hangs_on_one_gpu_fails_that_one(run_node: RunNode, machine: FakeNvml) -> None:
    machine.set(2, hang="nvmlDeviceGetPowerUsage")
    machine.write()
    preflight = run_node(groups=frozenset({CheckGroup.STATE}), driver_seconds=6.0)
    assert found(preflight, "driver", 2).outcome is Outcome.FAIL
    assert [gpu.outcome for gpu in preflight.gpus] == [Outcome.PASS, Outcome.PASS, Outcome.FAIL, Outcome.PASS]


def test_a_gpu_that_never_answers_hides_no_other(run_node: RunNode, machine: FakeNvml) -> None:
    machine.set(2, hang="any")
    machine.write()
    preflight = run_node(groups=frozenset({CheckGroup.STATE}), driver_seconds=4.0)
    assert [gpu.index for gpu in preflight.gpus] == [0, 1, 3]
    assert {gpu.outcome for gpu in preflight.gpus} == {Outcome.PASS}
    assert found(preflight, "driver", 2).outcome is Outcome.FAIL
    assert found(preflight, "driver", 2).detail.startswith("no answer within 4 s; the GPU or its driver hangs")
    loaded = run_node(groups=frozenset({CheckGroup.STATE, CheckGroup.MEMORY}), driver_seconds=4.0)
    assert found(loaded, "driver", 2).detail == found(preflight, "driver", 2).detail  # CUDA sees it
    assert found(loaded, "memory_bandwidth", 3).outcome is Outcome.PASS


def test_the_driver_alone_is_asked_without_torch_and_idle_links_are_no_fault(
    run_node: RunNode, machine: FakeNvml
) -> None:
    machine.set(0, pcie_generation=1, ecc__1__0=1)
    machine.write()
    state = frozenset({CheckGroup.STATE})
    preflight = run_node({uuid_of(0): {"die": "describe"}}, groups=state)
    bad = [(check.check, check.gpus) for check in preflight.checks if check.outcome in (Outcome.WARN, Outcome.FAIL)]
    assert bad == [("ecc", (0,))]
    assert preflight.versions == {"driver": "580.159.03"}
    machine.values["error"] = "9"
    machine.write()
    with pytest.raises(DataError, match="the NVIDIA driver is not loaded"):
        run_node(groups=state)
    machine.values |= {"error": "0", "hang": "nvmlDeviceGetCount_v2"}
    machine.write()
    with pytest.raises(UnreachableError, match="the driver hangs"):
        run_node(groups=state, driver_seconds=2.0)


def test_only_some_gpus(run_node: RunNode) -> None:
    memory = frozenset({CheckGroup.MEMORY})
    preflight = run_node(groups=memory, gpus=("1", uuid_of(3)[:12]))
    assert [gpu.index for gpu in preflight.gpus] == [1, 3]
    visible = run_node(groups=memory, CUDA_VISIBLE_DEVICES=f"2,{uuid_of(0)}")
    assert [gpu.index for gpu in visible.gpus] == [2, 0]
    absent = run_node(groups=memory, gpus=("9", "0", "GPU-ffffffff"))
    assert [gpu.index for gpu in absent.gpus] == [0]
    assert found(absent, "driver", 9).outcome is Outcome.FAIL
    assert found(absent, "driver").detail.startswith("there is no GPU GPU-ffffffff here")


def test_slurms_numbers_are_minor_numbers_and_what_slurm_lets_cuda_see_are_not_cudas(run_node: RunNode) -> None:
    """SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES as a prolog has them; a GPU's minor number is 7 - index."""
    preflight = run_node(groups=frozenset({CheckGroup.MEMORY}), slurm_gpus=("7", "5"), CUDA_VISIBLE_DEVICES="7,5")
    assert [gpu.index for gpu in preflight.gpus] == [0, 2]
    assert preflight.outcome is Outcome.PASS


def test_a_gpu_that_does_not_tell_its_minor_number_is_measured_with_those_that_slurm_names(
    run_node: RunNode, machine: FakeNvml
) -> None:
    machine.set(1, minor=None)
    machine.write()
    preflight = run_node(groups=frozenset({CheckGroup.MEMORY}), slurm_gpus=("7", "6"))
    assert [gpu.index for gpu in preflight.gpus] == [0, 1]
    assert preflight.outcome is Outcome.PASS
    assert [notice.code for notice in preflight.warnings] == ["minor_unknown"]


def test_a_gpu_that_is_gone_fails_whatever_can_be_said_of_the_others(run_node: RunNode, machine: FakeNvml) -> None:
    memory = frozenset({CheckGroup.MEMORY})
    preflight = run_node(groups=memory, slurm_gpus=("7", "3"))
    assert found(preflight, "driver").detail.startswith("Slurm names GPU 3, which the driver does not know")
    assert found(preflight, "memory_bandwidth", 0).outcome is Outcome.PASS
    untold = run_node(groups=memory, expected_gpus=5, CUDA_VISIBLE_DEVICES="")
    assert untold.outcome is Outcome.FAIL
    assert [notice.code for notice in untold.warnings] == ["not_measured"]
    machine.values["gpus"] = "0"
    machine.write()
    none = run_node(groups=frozenset({CheckGroup.STATE}), slurm_gpus=("7",), expected_gpus=4)
    assert found(none, "driver").detail.startswith("the driver knows 0 of 4 GPUs")
    assert [notice.message for notice in none.warnings] == ["NVML knows no GPU here; run: stepscope doctor"]


def test_a_whole_gpu_that_cuda_hides_behind_an_instance_is_measured(run_node: RunNode, machine: FakeNvml) -> None:
    machine.set(1, mig_mode=1, **mig_instance(1, 0, gpu_instance=7))
    machine.write()
    instance = "MIG-00010000-0000-4000-8000-000000000000"
    memory = frozenset({CheckGroup.MEMORY})
    for gpus in (("2",), (uuid_of(2),)):
        preflight = run_node(groups=memory, gpus=gpus, FAKE_SHOWN=instance)
        assert found(preflight, "memory_bandwidth", 2).outcome is Outcome.PASS
        assert [gpu.index for gpu in preflight.gpus] == [2]
        assert preflight.outcome is Outcome.PASS


def test_a_split_gpu_of_which_cuda_shows_nothing_is_no_lost_one(run_node: RunNode, machine: FakeNvml) -> None:
    machine.set(1, mig_mode=1)  # without instances
    machine.write()
    shown = ",".join(uuid_of(index) for index in (0, 2, 3))
    preflight = run_node(groups=frozenset({CheckGroup.MEMORY}), FAKE_SHOWN=shown)
    assert preflight.outcome is Outcome.PASS
    assert [gpu.index for gpu in preflight.gpus] == [0, 2, 3]


def test_nothing_is_run_on_a_gpu_that_is_split(run_node: RunNode, machine: FakeNvml) -> None:
    machine.set(1, mig_mode=1, ecc__1__0=1, **mig_instance(1, 0, gpu_instance=7))
    machine.write()
    instance = "MIG-00010000-0000-4000-8000-000000000000"
    for names in ({"gpus": (instance,)}, {"gpus": ("1",)}, {"slurm_gpus": (instance,)}):
        preflight = run_node(**names)
        assert {check.check for check in preflight.checks} <= {c for c, g in CHECKS.items() if g is CheckGroup.STATE}
        assert found(preflight, "ecc", 1).outcome is Outcome.FAIL
        assert [notice.code for notice in preflight.warnings] == ["split_gpu"]
    everywhere = run_node(slurm_gpus=("0",))
    assert [gpu.outcome for gpu in everywhere.gpus] == [Outcome.PASS, Outcome.FAIL, Outcome.PASS, Outcome.PASS]
    assert [notice.code for notice in everywhere.warnings] == ["slurm_counts_mig"]


def test_nothing_to_measure(run_node: RunNode, machine: FakeNvml) -> None:
    with pytest.raises(DataError, match="torch sees no GPU here"):
        run_node(CUDA_VISIBLE_DEVICES="")
    machine.values["error"] = "9"
    machine.write()
    with pytest.raises(DataError, match="torch sees no GPU here; run: stepscope doctor"):
        run_node(FAKE_GPU_COUNT="0")
    with pytest.raises(UnreachableError, match="torch cannot look for GPUs"):
        run_node({uuid_of(0): {"die": "describe"}})
