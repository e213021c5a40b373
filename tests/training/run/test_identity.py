"""Identity: a process knows its rank and mesh without asking the others."""

from __future__ import annotations

import pytest

from stepscope.training.captures.schedule import captures_on_this_rank
from stepscope.training.run import identity as subject
from stepscope.training.run.identity import Identity

pytestmark = pytest.mark.usefixtures("no_job")


def _rank(rank: int, world_size: int) -> Identity:
    return Identity(rank=rank, local_rank=0, world_size=world_size, host="h")


def test_rank_comes_from_the_environment_when_torch_is_not_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (subject.identify_process().rank, subject.identify_process().world_size) == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "not a number")
    found = subject.identify_process()
    assert (found.rank, found.world_size, found.local_rank) == (3, 8, 0)


@pytest.mark.parametrize("names", subject.LAUNCHERS)
def test_every_launchers_variables_tell_the_rank(monkeypatch: pytest.MonkeyPatch, names: tuple[str, str, str]) -> None:
    for variable, value in zip(names, ("9", "16", "1"), strict=True):
        monkeypatch.setenv(variable, value)
    found = subject.identify_process()
    assert (found.rank, found.world_size, found.local_rank) == (9, 16, 1)


def test_a_launcher_under_srun_tells_the_rank_and_a_batch_script_is_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "16"}.items():
        monkeypatch.setenv(variable, value)
    assert subject.identify_process().world_size == 1
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (subject.identify_process().rank, subject.identify_process().world_size) == (5, 8)


def test_which_ranks_write_traces() -> None:
    assert captures_on_this_rank("auto", _rank(63, 1000))
    assert not captures_on_this_rank("auto", _rank(64, 1000))
    assert captures_on_this_rank("all", _rank(999, 1000))
    assert not captures_on_this_rank([0, 5], _rank(4, 8))
    with pytest.raises(ValueError, match="ranks is"):
        captures_on_this_rank("some", _rank(0, 1))
