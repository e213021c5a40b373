"""GPUs and checks are named as people and Slurm name them."""

from __future__ import annotations

import pytest

from stepscope.core.documents.machine_checks import CheckGroup
from stepscope.core.errors import UsageError
from stepscope.workflow.preflight.workers import (
    PreflightRequest,
    driver_seconds_of,
    parse_check_groups,
    parse_gpu_names,
    parse_slurm_gpus,
)


def test_gpus_by_index_range_and_uuid() -> None:
    assert parse_gpu_names("0,2-4, 3,GPU-1b2c3d4e-0000,MIG-17") == ("0", "2", "3", "4", "GPU-1b2c3d4e-0000", "MIG-17")
    assert parse_gpu_names("0-99999999") == ("0-99999999",)
    assert parse_gpu_names(" ,") == ()


def test_gpus_as_slurm_names_them() -> None:
    assert parse_slurm_gpus("7,0-2,0,GPU-1b2c3d4e") == ("7", "0", "1", "2", "GPU-1b2c3d4e")
    assert parse_slurm_gpus("NoDevFiles") == ()


def test_the_driver_is_waited_for_no_longer_than_a_check_may_take_but_for_one_that_wakes_its_gpu() -> None:
    assert [driver_seconds_of(seconds) for seconds in (1.0, 5.0, 8.0, 60.0)] == [5.0, 5.0, 8.0, 15.0]


def test_groups_by_their_name_or_one_of_their_checks() -> None:
    assert parse_check_groups("memory, all-reduce,ecc") == {CheckGroup.MEMORY, CheckGroup.ALL_REDUCE, CheckGroup.STATE}
    with pytest.raises(UsageError, match=r'unknown check "speed"; did you mean "peers"\? Known: state, memory'):
        parse_check_groups("speed")


def test_the_driver_alone_runs_nothing() -> None:
    assert not PreflightRequest(groups=frozenset({CheckGroup.STATE})).runs
    assert PreflightRequest().runs
