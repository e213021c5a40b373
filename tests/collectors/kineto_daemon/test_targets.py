"""Trainer processes among the Kineto clients, and the rank of each trace."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from stepscope.collectors.kineto_daemon.processes import (
    JobPlace,
    KinetoPeer,
    KinetoProcess,
    KinetoTarget,
    KinetoTargets,
    is_helper,
    kineto_key_of,
    kineto_run_name,
    parse_environ,
    place_of_environment,
    ranks_to_keep,
)
from stepscope.collectors.kineto_daemon.trace_files import make_capture_folder


def process(pid: int, *, ancestors: tuple[int, ...] = (1,), job_id: int | None = None, inner: int = 0) -> KinetoProcess:
    address = f"/s/dynoconfigclient{pid:08x}-aaaa"
    return KinetoProcess(address, KinetoPeer(pid, 1000, 1000), inner or pid, ancestors, job_id, 0.0, 1, True)


def target(pid: int, rank: int | None) -> KinetoTarget:
    one = process(pid)
    return KinetoTarget(kineto_key_of(one), one, JobPlace(rank), "run", Path("/runs/run"))


def test_a_key_lives_as_long_as_the_process_and_holds_no_odd_letters() -> None:
    assert kineto_key_of(process(10)) == "kineto-0000000a-aaaa"
    odd = KinetoProcess(b"\0dynoconfigclient../x\n\0", KinetoPeer(1, 0, 0), 1, (), None, 0.0, 1, True)
    assert kineto_key_of(odd) == "kineto-x"


class Machine:
    """Processes of a made-up /proc."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self._targets = KinetoTargets(Path("/runs"), proc)

    def start(self, pid: int, parent: int, *, environ: str = "", command: str = "python train.py") -> None:
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "environ").write_bytes(environ.replace(" ", "\0").encode())
        (self.proc / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode())
        self.uses(pid, parent, 0.0)

    def uses(self, pid: int, parent: int, cpu_seconds: float) -> None:
        """So much CPU time until now."""
        ticks = int(cpu_seconds * os.sysconf("SC_CLK_TCK"))
        stat = f"{pid} (py) thon) S {parent} " + "0 " * 9 + f"{ticks} 0 " + "0 " * 6 + f"{50 * pid} 0"
        (self.proc / str(pid) / "stat").write_text(stat)

    def targets(self, *processes: KinetoProcess, now: float = 0.0) -> list[tuple[int, int | None, str]]:
        found = self._targets.of(processes, now).values()
        return [(one.process.peer.pid, one.place.rank, one.run) for one in found]


def test_launchers_and_what_trainers_started_are_no_targets(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.start(100, 1, command="torchrun train.py")
    machine.start(101, 100, environ="RANK=0")
    machine.start(102, 100, environ="RANK=1")
    machine.start(103, 101, environ="RANK=0")  # a data loader's worker has its trainer's environment
    machine.start(200, 1)
    machine.start(201, 200, command="python /x/torch/_inductor/compile_worker/__main__.py --workers=8")
    found = machine.targets(
        process(100),
        process(101, ancestors=(100, 1)),
        process(102, ancestors=(100, 1)),
        process(103, ancestors=(101, 100, 1)),
        process(200),
        process(201, ancestors=(200, 1)),
    )
    assert found == [(101, 0, "pid-100-5000"), (102, 1, "pid-100-5000"), (200, None, "pid-200-10000")]


def test_a_parent_that_only_waits_for_its_ranks_is_no_target(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    spawned = [process(100), process(101, ancestors=(100, 1)), process(102, ancestors=(100, 1))]
    for pid, parent in ((100, 1), (101, 100), (102, 100)):  # torch.multiprocessing.spawn sets RANK too late to be seen
        machine.start(pid, parent)
    run = "pid-100-5000"
    assert machine.targets(*spawned) == [(100, None, run), (101, None, run), (102, None, run)]
    for pid, parent in ((101, 100), (102, 100)):
        machine.uses(pid, parent, 9.0)
    assert machine.targets(*spawned, now=10.0) == [(101, None, run), (102, None, run)]
    machine.uses(100, 1, 8.0)  # it trains itself, and has helpers
    assert machine.targets(*spawned, now=10.0)[0] == (100, None, run)


def test_ranks_are_the_environments_then_the_traces_then_the_next_that_is_free() -> None:
    taken = [target(10, 2), target(11, None), target(12, None), target(13, 2)]
    in_trace = {one.key: rank for one, rank in zip(taken, (None, 0, None, 2), strict=True)}
    kept = ranks_to_keep(taken, in_trace)
    assert [kept[one.key] for one in taken] == [2, 0, 1, 3]


def test_a_place_is_read_from_an_environment() -> None:
    content = b"WORLD_SIZE=8\0RANK=3\0SLURM_PROCID=5\0TORCHELASTIC_RUN_ID=abc\0bad\0X=\xff\0"
    content += b"KINETO_ONDEMAND_TRACE_DIR=/scratch\0"
    assert place_of_environment(parse_environ(content)) == JobPlace(3, "abc", "/scratch", 8)
    assert place_of_environment({"LOCAL_WORLD_SIZE": "4"}).local_size == 4
    assert place_of_environment({"SLURM_PROCID": "5", "TORCHELASTIC_RUN_ID": "none"}) == JobPlace(5)
    assert place_of_environment({"RANK": "-1", "SLURM_PROCID": "x"}) == JobPlace()


def test_a_launcher_is_known_by_its_command_before_it_has_started_anybody(tmp_path: Path) -> None:
    def is_one(*arguments: str) -> bool:
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "cmdline").write_bytes("".join(f"{one}\0" for one in arguments).encode())
        return is_helper(7, tmp_path)

    assert is_one("/usr/bin/python3", "/usr/bin/torchrun", "--nproc-per-node", "2", "train.py")
    assert is_one("python", "-u", "/opt/venv/bin/accelerate", "launch", "train.py")
    assert is_one("python", "-u", "-m", "torch.distributed.run", "train.py")
    assert is_one("python", "-W", "ignore", "-X", "importtime", "/usr/bin/torchrun", "train.py")
    for command in (["python", "train.py", "-m", "torchrun"], ["python", "-m", "train"], ["python", "-m"], [""]):
        assert not is_one(*command)


def test_a_run_is_called_by_who_counts_jobs_best(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.start(100, 1)
    assert kineto_run_name(77, "abc", 100, tmp_path) == "slurm-77"
    assert kineto_run_name(None, "../a b", 100, tmp_path) == "torchrun-___a_b"
    assert kineto_run_name(None, None, 100, tmp_path) == "pid-100-5000"
    assert kineto_run_name(None, None, 999, tmp_path) == "pid-999-0"


def test_captures_of_a_run_are_counted(tmp_path: Path) -> None:
    assert [make_capture_folder(tmp_path / "run") for _ in range(3)] == [0, 1, 2]
    (tmp_path / "run/traces/step41-attempt2").mkdir()
    assert make_capture_folder(tmp_path / "run") == 42


def test_a_job_that_another_user_names_is_kept_apart(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.start(10, 9, environ="RANK=0")
    machine.start(20, 19, environ="RANK=0")
    ours = process(10, job_id=7)
    theirs = replace(process(20, job_id=7), peer=KinetoPeer(20, 666, 666), first_seen=1.0)
    assert machine.targets(theirs, ours) == [(20, 0, "slurm-7-uid666"), (10, 0, "slurm-7")]
    assert machine.targets(theirs) == [(20, 0, "slurm-7-uid666")]  # a name is for life
