"""GPUs selected by the names that people and Slurm use."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.core.documents.machine_checks import CheckGroup, Outcome
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.workflow.preflight.driver import DriverGpu, DriverLook, look_by_driver
from stepscope.workflow.preflight.gpus import GpuSelection, select_gpus, without_visible
from stepscope.workflow.preflight.workers import PreflightRequest, WorkerPrograms
from tests.workflow.preflight.fake_devices import uuid_of

_WHOLE = DriverLook(tuple(DriverGpu(f"0{i}", i, uuid_of(i), str(3 - i)) for i in range(4)))
_SPLIT = DriverLook(
    tuple(
        DriverGpu(f"0{i}", i, uuid_of(i), str(i), True, tuple((f"MIG-{i}{slot}", str(7 + slot)) for slot in range(7)))
        for i in range(2)
    )
)

_CHILD = """
import os
from stepscope.collectors.nvml.binding import NO_BINDING, DriverUnusableError
from stepscope.core.metrics.readings import MissingReason
from stepscope.workflow.preflight.worker_process import serve_requests

def answer(request):
    FAILS

serve_requests(answer)
"""


def by_slurm(
    names: str, driver: DriverLook = _WHOLE, *, visible: str = "", num_on_bus: int = 0, expected: int = 0
) -> GpuSelection:
    request = PreflightRequest(slurm_gpus=tuple(filter(None, names.split(","))), expected_gpus=expected)
    return select_gpus(request, driver, WorkerPrograms(environment={"CUDA_VISIBLE_DEVICES": visible}), num_on_bus)


def by_name(*names: str, driver: DriverLook = _WHOLE) -> GpuSelection:
    return select_gpus(PreflightRequest(gpus=names), driver, WorkerPrograms(environment={}), 0)


def test_slurms_numbers_are_minor_numbers() -> None:
    assert by_slurm("3,0").request.gpus == ("0", "3")
    assert by_slurm(f"3,{uuid_of(0)},{uuid_of(2)[:12]}").request.gpus == ("0", "2")
    assert by_slurm("3").request.runs
    assert by_slurm("3").warnings == ()


def test_numbers_on_a_machine_with_mig_mean_no_gpu_and_all_are_asked() -> None:
    mixed = DriverLook((_WHOLE.gpus[0], _SPLIT.gpus[1]))
    for selection in (by_slurm("9", _SPLIT), by_slurm("0,MIG-10", _SPLIT), by_slurm("3", mixed)):
        assert selection.request.gpus is None
        assert not selection.request.runs
        (notice,) = selection.warnings
        assert "identifies no GPU on a machine with MIG" in notice.message


def test_an_instance_means_its_gpu_on_which_nothing_is_run() -> None:
    old = f"MIG-{uuid_of(1)}/8/0"
    for selection in (by_slurm("MIG-10,MIG-16", _SPLIT), by_slurm(old, _SPLIT), by_name("MIG-13", driver=_SPLIT)):
        assert selection.request.gpus == ("1",)
        assert not selection.request.runs
        (notice,) = selection.warnings
        assert notice.message.startswith("GPU 1 is split into MIG instances")


def test_uuids_that_slurm_lets_cuda_see_tell_more_than_numbers() -> None:
    assert by_slurm("9", _SPLIT, visible="MIG-12").request.gpus == ("1",)
    assert by_slurm("9,10", _SPLIT, visible="MIG-12,3").request.gpus is None
    assert by_slurm("3", visible="2").request.gpus == ("0",)
    assert without_visible(WorkerPrograms(environment={"CUDA_VISIBLE_DEVICES": "2", "A": "b"})).environment == {
        "A": "b"
    }


def test_an_instance_that_there_is_not_is_wrong_use_and_hides_no_other() -> None:
    for driver in (_WHOLE, _SPLIT):
        with pytest.raises(UsageError, match=r"^--slurm-gpus: Slurm's MIG-99 is no GPU here; "):
            by_slurm("MIG-99", driver, num_on_bus=len(driver.gpus))
    with pytest.raises(UsageError, match="names no GPU"):
        by_slurm("")
    selection = by_slurm("3,MIG-98,MIG-99")
    assert selection.request.gpus == ("0",)
    assert [notice.message for notice in selection.warnings] == [
        "Slurm's MIG-98, MIG-99 are no GPUs here: the others are checked"
    ]


@pytest.mark.parametrize(
    ("names", "driver", "gpus", "said"),
    [
        ("0,1,2,3,7", _WHOLE, ("3", "2", "1", "0"), "Slurm names GPU 7, which"),
        ("7", _WHOLE, None, "Slurm names GPU 7, which"),
        ("3,8,9", _WHOLE, ("0",), "Slurm names GPUs 8, 9, which"),
        (uuid_of(7), _WHOLE, None, f"Slurm names GPU {uuid_of(7)}, which"),
        (f"MIG-10,{uuid_of(7)}", _SPLIT, ("1",), f"Slurm names GPU {uuid_of(7)}, which"),
    ],
)
def test_a_whole_gpu_that_slurm_names_and_nobody_knows_fails(
    names: str, driver: DriverLook, gpus: tuple[str, ...] | None, said: str
) -> None:
    """Also where the PCI bus does not know it any more, as after its surprise removal."""
    selection = by_slurm(names, driver, num_on_bus=len(driver.gpus))
    assert selection.request.gpus == gpus
    (gone,) = selection.results
    assert gone.outcome is Outcome.FAIL
    assert gone.detail.startswith(said)
    assert "fell off the bus, or gres.conf is wrong (compare with nvidia-smi -q, Minor Number)" in gone.detail


def without_minors(*indices: int) -> DriverLook:
    return DriverLook(tuple(replace(gpu, minor="") if gpu.index in indices else gpu for gpu in _WHOLE.gpus))


def test_a_number_that_no_gpu_has_is_one_of_those_that_tell_none() -> None:
    one = by_slurm("3,2", without_minors(1))
    assert (one.request.gpus, one.results) == (("0", "1"), ())
    assert one.request.runs
    assert by_slurm("3", without_minors(1)) == by_slurm("3")
    several = by_slurm("3,2", without_minors(1, 2))
    assert several.request.gpus == ("0", "1", "2")
    assert not several.request.runs  # one of them may be another job's
    for selection in (one, several):
        (notice,) = selection.warnings
        assert notice.message.startswith("no GPU tells that it is Slurm's 2: ")


def test_what_gpus_without_a_minor_number_cannot_be_is_gone() -> None:
    for names in ("3,2,9", f"3,2,{uuid_of(7)}"):
        selection = by_slurm(names, without_minors(1))
        assert selection.request.gpus == ("0", "1")
        assert [one.outcome for one in selection.results] == [Outcome.FAIL]


def test_where_no_gpu_tells_a_minor_number_it_is_taken_for_the_index() -> None:
    selection = by_slurm("3,0", without_minors(0, 1, 2, 3))
    assert (selection.request.gpus, selection.results) == (("3", "0"), ())
    (notice,) = selection.warnings
    assert notice.message == "the driver reports no minor number: Slurm's 3, 0 are taken for indices"
    assert [one.outcome for one in by_slurm("3,7", without_minors(0, 1, 2, 3)).results] == [Outcome.FAIL]
    assert by_slurm(uuid_of(2), without_minors(0, 1, 2, 3)).warnings == ()


def test_fewer_gpus_than_expected_fail_whichever_are_asked_for() -> None:
    one_gone = "the driver knows 4 of 5 GPUs: look for XIDs, reboot"
    assert [one.detail for one in by_slurm("3", expected=5).results] == [one_gone]
    assert by_slurm("3", expected=5).request.gpus == ("0",)
    for names in ("MIG-99", ""):
        selection = by_slurm(names, expected=5)
        assert [one.detail for one in selection.results] == [one_gone]
        assert not selection.request.runs
    assert len(by_slurm("9", _SPLIT, expected=3).results) == 1
    assert len(by_slurm("0", DriverLook(), expected=8).results) == 1
    asked = PreflightRequest(expected_gpus=5)
    assert [one.detail for one in select_gpus(asked, _WHOLE, WorkerPrograms(environment={}), 0).results] == [one_gone]


def test_as_many_gpus_as_expected_are_enough() -> None:
    assert by_slurm("3", expected=4).results == ()
    assert by_slurm("3", DriverLook(_WHOLE.gpus[:3], ((3, "lost"),)), expected=4).results == ()


def test_a_driver_that_is_not_there_tells_of_fewer_gpus_than_expected_and_what_asks_nobody_of_none() -> None:
    no_driver = DriverLook(why_not="no driver is installed", is_drivers=True)
    (none,) = by_slurm("0", no_driver, expected=4).results
    assert (none.outcome, none.detail) == (Outcome.FAIL, "the driver knows 0 of 4 GPUs: no driver is installed")
    with pytest.raises(DataError, match="No space left"):
        by_slurm("0", DriverLook(why_not="OSError: No space left"), expected=4)
    with pytest.raises(UnreachableError, match="hangs"):
        by_slurm("0", DriverLook(why_not="no answer", hangs=True), expected=4)
    on_cpu = PreflightRequest(device_type="cpu", expected_gpus=4)
    assert select_gpus(on_cpu, DriverLook(why_not="the CPU is no GPU"), WorkerPrograms(environment={}), 0).results == ()


@pytest.mark.parametrize(
    ("process", "is_drivers"),
    [
        ("raise DriverUnusableError(MissingReason.NOT_INSTALLED, 'no driver is installed')", True),
        ("raise DriverUnusableError(MissingReason.NOT_INSTALLED, NO_BINDING)", False),
        ("raise OSError(28, 'No space left on device')", False),
        ("os.kill(os.getpid(), 9)", False),
    ],
)
def test_only_what_the_driver_says_is_its_doing(tmp_path: Path, process: str, is_drivers: bool) -> None:
    child = tmp_path / "child.py"
    child.write_text(_CHILD.replace("FAILS", process))
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}
    looked = look_by_driver(WorkerPrograms(state=(sys.executable, str(child)), environment=environment), 20.0)
    assert looked.why_not
    assert (looked.is_drivers, looked.hangs) == (is_drivers, False)


def test_a_name_that_no_gpu_has_is_the_one_that_is_lost_where_one_is() -> None:
    lost = DriverLook(_WHOLE.gpus[:3], ((3, "it fell off the bus"),))
    assert by_slurm("3,0", lost).request.gpus == ("0", "3")
    assert by_slurm("3", lost).request.gpus == ("0",)
    for names, gpus in (("3,9", ("0",)), ("9", None)):
        selection = by_slurm(names, num_on_bus=5)
        assert selection.request.gpus == gpus
        (gone,) = selection.results
        assert gone.outcome is Outcome.FAIL
        assert gone.detail.startswith("Slurm's 9 is no GPU here: 5 GPUs are on the PCI bus, the driver knows 4")


def test_slurms_names_take_a_driver_that_answers() -> None:
    with pytest.raises(UnreachableError, match="the driver hangs"):
        by_slurm("0", DriverLook(why_not="no answer", hangs=True))
    with pytest.raises(DataError, match="no library"):
        by_slurm("0", DriverLook(why_not="no library"))


def test_other_names_stay_as_they_are() -> None:
    assert by_name("0", "9", uuid_of(2), "GPU-ffffffff").request.gpus == ("0", "9", "2", "GPU-ffffffff")
    assert by_name("0", driver=DriverLook(why_not="none of NVIDIA's")).request.gpus == ("0",)
    asked = PreflightRequest(groups=frozenset({CheckGroup.MEMORY}))
    assert select_gpus(asked, _SPLIT, WorkerPrograms(environment={}), 0) == GpuSelection(asked)
