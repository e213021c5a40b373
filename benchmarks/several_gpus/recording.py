"""Recording of the cases of one call: main pool, pools of other environments, launched cases, results as they come."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.agent.real_agent import RealAgent, started_agent
from benchmarks.labelled_runs.archive import ArchiveFullError, num_runs_that_fit, pack
from benchmarks.labelled_runs.job import Job
from benchmarks.labelled_runs.measurement import BareSteps, sets_of, truth
from benchmarks.ranks import free_port
from benchmarks.several_gpus.agent_samples import AgentSamples, wait_for_gpus
from benchmarks.several_gpus.pool import Pool
from benchmarks.several_gpus.rank import RankPlace, Task
from benchmarks.several_gpus.results import BLOCKS, FAILED, RECORDED, Result, Results

LANE = "several"
_MOST_TARS = 4
"""With the results, the agent's file and log a call leaves 7 files at most, of 56 MiB at most."""
_ENVIRONMENT_SECONDS = 45.0
"""Kept free for each pool with an environment of its own: its start and a case."""
_LEAST_SECONDS = 20.0
"""A case is not begun with less left."""
_LAST_SECONDS = 12.0
"""Kept free at the end for what waits to be packed."""
_USUAL_BYTES = 2 << 20
"""A case may leave as much until one has left more."""
_COST_AFTER = 8
"""Cases after which the agent's cost is measured: by then the most important are recorded."""
_COST_SECONDS, _COST_FILE = 60.0, "agent.json"
_AGENT_STARTS_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call records.

    Attributes:
        jobs: cases in their order.
        table: where ranks find them, as `module:name`.
        seconds: the whole call may take.
        case_seconds: a case may take.
        earlier: results of earlier calls; what is recorded there is not recorded again, but for `again`.
    """

    jobs: Sequence[Job]
    table: str
    out: Path
    num_ranks: int
    device: str
    seconds: float
    case_seconds: float = 60.0
    is_tiny: bool = False
    has_agent: bool = True
    earlier: Sequence[Path] = ()
    again: Sequence[str] = ()


@dataclass(slots=True)
class _Deferred:
    """Cases whose faults are an environment, with their bare steps without it."""

    environment: dict[str, str]
    jobs: list[tuple[Job, dict[frozenset[str], BareSteps]]] = field(default_factory=list)


class Recording:
    """One call."""

    def __init__(self, plan: Plan, say: Callable[[str], None] = lambda line: print(line, flush=True)) -> None:
        self._plan, self._say = plan, say
        self._began, self._started = time.monotonic(), time.time()
        plan.out.mkdir(parents=True, exist_ok=True)
        self._results = Results(plan.out, plan.earlier, plan.again)
        self._work = Path(os.environ.get("TMPDIR", "/tmp")) / f"several-gpus-{os.getpid()}"
        self._packing = ThreadPoolExecutor(1)
        self._packed: list[Future[None]] = []
        self._most_bytes = _USUAL_BYTES
        self._agent: RealAgent | None = None
        self._samples: AgentSamples | None = None
        self._cost: dict[str, Any] = {}

    def record(self) -> int:
        """Record what is not recorded yet; returns how many cases failed or were not reached."""
        jobs = [job for job in self._plan.jobs if not self._results.is_recorded(job.name)]
        self._say(f"{len(jobs)} of {len(self._plan.jobs)} cases to record on {self._plan.num_ranks} ranks")
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        try:
            with self._beside_agent():
                deferred = self._in_main_pool(jobs)
                for group in deferred:
                    self._in_own_pool(group)
        finally:
            self._packing.shutdown(wait=True)
            shutil.rmtree(self._work, ignore_errors=True)
        for future in self._packed:
            future.result()
        num_missing = sum(not self._results.is_recorded(job.name) for job in jobs)
        self._say(f"{len(jobs) - num_missing} cases recorded in {self._elapsed():.0f} s, {num_missing} are missing")
        return num_missing

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _left(self) -> float:
        return self._plan.seconds - _LAST_SECONDS - self._elapsed()

    @contextlib.contextmanager
    def _beside_agent(self) -> Iterator[None]:
        """The node's agent runs throughout; without one the cases are recorded all the same."""
        with contextlib.ExitStack() as stack:
            if self._plan.has_agent:
                try:
                    socket = f"@stepscope-several-gpus-{os.getpid()}"
                    environment = {**os.environ, "STEPSCOPE_AGENT__KINETO__ENABLED": "false"}
                    started = started_agent(self._work, "--interval", "1", "--socket", socket, environment=environment)
                    self._agent = stack.enter_context(started)
                    os.environ["STEPSCOPE_AGENT_SOCKET"] = socket
                    num_gpus = 0 if self._plan.device == "cpu" else self._plan.num_ranks
                    shown = wait_for_gpus(self._agent, num_gpus, _AGENT_STARTS_SECONDS)
                    self._say(f"the agent shows {shown} GPUs after {self._elapsed():.1f} s")
                    self._samples = AgentSamples(self._agent, self._plan.out / "agent.jsonl.gz")
                    self._samples.start()
                except (RuntimeError, OSError) as error:
                    self._say(f"no agent: {error}")
            try:
                yield
            finally:
                if self._samples is not None:
                    self._cost["during"] = self._samples.close()
                    self._write_cost()
                    self._say(f"agent: {json.dumps(self._cost['during'])}")
                log = self._work / "agent.log"
                if log.exists():
                    (self._plan.out / "agent.log").write_bytes(log.read_bytes()[-(1 << 20) :])

    def _write_cost(self) -> None:
        (self._plan.out / _COST_FILE).write_text(json.dumps(self._cost, indent=1) + "\n")

    def _has_room(self) -> bool:
        """Whether the tar files have room for another case, as large as the largest so far."""
        num_waiting = sum(not future.done() for future in self._packed)
        if num_runs_that_fit(self._plan.out, LANE, _MOST_TARS, self._most_bytes) > num_waiting:
            return True
        for future in self._packed:
            future.result()
        return num_runs_that_fit(self._plan.out, LANE, _MOST_TARS, self._most_bytes) > 0

    def _place(self, jobs: Sequence[Job]) -> RankPlace:
        plan = self._plan
        imports = tuple(dict.fromkeys(name for job in jobs for name in job.imports))
        folder = self._work / f"pool{len(list(self._work.glob('pool*')))}"
        folder.mkdir()
        return RankPlace(0, plan.num_ranks, plan.device, plan.table, folder, imports, plan.is_tiny)

    def _in_main_pool(self, jobs: Sequence[Job]) -> list[_Deferred]:
        """Record all cases that need no environment; returns the others, measured without their faults."""
        deferred: list[_Deferred] = []
        if not jobs:
            return deferred
        pool = Pool(self._place(jobs), {})
        try:
            started = pool.start()
            self._say(f"pool started in {started.seconds:.1f} s, {started.trouble or 'well'} {pool.missing or ''}")
            num_done = 0
            for job in jobs:
                reserved = _ENVIRONMENT_SECONDS * len(deferred)
                is_new = bool(job.environment) and job.environment not in [one.environment for one in deferred]
                if self._left() - reserved - _ENVIRONMENT_SECONDS * is_new < _LEAST_SECONDS:
                    continue
                if not self._has_room():
                    self._say("the tar files are full: the other cases are left to another call")
                    break
                if job.environment:
                    self._defer(pool, job, deferred)
                elif job.is_launched:
                    self._launched(pool, job)
                else:
                    self._measured(pool, job, {})
                num_done += 1
                if num_done == _COST_AFTER:
                    self._cost_of_agent(pool)
            if num_done < _COST_AFTER:
                self._cost_of_agent(pool)
        finally:
            pool.close()
        return deferred

    def _in_own_pool(self, group: _Deferred) -> None:
        pool = Pool(self._place([job for job, _ in group.jobs]), group.environment)
        try:
            for job, apart in group.jobs:
                if self._left() < _LEAST_SECONDS or not self._has_room():
                    break
                if not pool.is_running:
                    started = pool.start(min(_ENVIRONMENT_SECONDS, self._left()))
                    said = f"{started.seconds:.1f} s, {started.trouble or 'well'}"
                    self._say(f"pool with {group.environment} started in {said}")
                self._measured(pool, job, apart)
        finally:
            pool.close()

    def _measured(self, pool: Pool, job: Job, apart: dict[frozenset[str], BareSteps]) -> None:
        folder, began = self._folder(job), time.time()
        task = Task("measure", job.name, folder, apart)
        outcome = pool.run(task, min(self._plan.case_seconds, self._left()))
        if outcome.trouble is not None:
            self._failed(job.name, began, outcome.trouble)
        else:
            self._keep(job, folder, began, time.time())

    def _defer(self, pool: Pool, job: Job, deferred: list[_Deferred]) -> None:
        """Measure a case's bare steps without its environment, which its own pool then compares with."""
        began = time.time()
        own = frozenset(fault.name for fault in job.faults if fault.environment)
        sets = tuple(on for on in sets_of(job) if not on & own)
        task = Task("blocks", job.name, self._folder(job), sets=sets)
        outcome = pool.run(task, min(self._plan.case_seconds, self._left()))
        if outcome.trouble is not None:
            self._failed(job.name, began, outcome.trouble)
            return
        figures = {"+".join(sorted(on)) or "none": steps.blocks_ms for on, steps in outcome.result.items()}
        self._results.add(Result(job.name, BLOCKS, began, outcome.seconds, figures))
        group = next((one for one in deferred if one.environment == job.environment), None)
        if group is None:
            deferred.append(group := _Deferred(job.environment))
        group.jobs.append((job, outcome.result))

    def _launched(self, pool: Pool, job: Job) -> None:
        """Measure the bare blocks in the pool, then run a training script under `stepscope run`."""
        folder, began = self._folder(job), time.time()
        task = Task("blocks", job.name, folder, sets=tuple(sets_of(job)))
        outcome = pool.run(task, min(self._plan.case_seconds, self._left()))
        if outcome.trouble is None:
            entry = truth(job, outcome.result) | {"num_ranks": self._plan.num_ranks}
            (folder / "truth.json").write_text(json.dumps({job.name: entry}, indent=1))
            trouble = self._run_script(job, folder, min(self._plan.case_seconds, self._left()))
        else:
            trouble = outcome.trouble
        if trouble is not None:
            self._failed(job.name, began, trouble)
        else:
            self._keep(job, folder, began, time.time())

    def _run_script(self, job: Job, folder: Path, seconds: float) -> str | None:
        """Launch the script; returns what went wrong."""
        plan = self._plan
        torchrun = shutil.which("torchrun")
        launcher = [torchrun] if torchrun else [sys.executable, "-m", "torch.distributed.run"]
        command = [sys.executable, "-m", "stepscope", "run", "--out", str(folder), "--run", job.name, "--", *launcher]
        command += ["--nproc-per-node", str(plan.num_ranks), "--master-port", str(free_port())]
        command += ["-m", "benchmarks.several_gpus.script", job.name, "--table", plan.table]
        command += ["--folder", str(folder), "--device", plan.device, *(["--tiny"] if plan.is_tiny else [])]
        log = folder / "script.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=stream, start_new_session=True, env=_with_path(os.environ)
            )
            try:
                status = process.wait(max(seconds, 1.0))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status == 0:
            return None
        ended = f"did not end in {seconds:.0f} s" if status is None else f"ended with {status}"
        return f"{' '.join(command[2:8])} {ended}: {log.read_text()[-3000:]}"

    def _cost_of_agent(self, pool: Pool) -> None:
        if self._agent is None or "beside_training" in self._cost or self._left() < _LEAST_SECONDS:
            return
        folder = self._work / "agent-cost"
        task = Task("agent_cost", folder=folder, agent=(self._agent.pid, self._agent.port))
        outcome = pool.run(task, min(_COST_SECONDS, self._left()))
        self._cost["beside_training"] = outcome.result if outcome.trouble is None else {"trouble": outcome.trouble}
        self._write_cost()
        said = outcome.trouble or f"with the agent / without {outcome.result['ratio']}"
        self._say(f"agent beside training in {outcome.seconds:.1f} s: {said}")

    def _folder(self, job: Job) -> Path:
        folder = self._work / job.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _failed(self, name: str, began: float, trouble: str) -> None:
        self._results.add(Result(name, FAILED, began, time.time() - began, trouble=_shortened(trouble)))
        self._say(f"{name} failed after {time.time() - began:.1f} s: {_shortened(trouble, 1500)}")

    def _keep(self, job: Job, folder: Path, began: float, ended: float) -> None:
        """Pack a case while the next one runs."""
        more = []
        if self._samples is not None:
            lines = [json.dumps(one, separators=(",", ":")) for one in self._samples.between(began - 1, ended + 1)]
            (path := folder / "agent.jsonl").write_text("".join(line + "\n" for line in lines))
            more = [path]
        self._packed.append(self._packing.submit(self._pack, job, folder, began, ended, more))

    def _pack(self, job: Job, folder: Path, began: float, ended: float, more: list[Path]) -> None:
        entry = json.loads((folder / "truth.json").read_text())[job.name]
        names = ("bare_ms", "fixed_ms", "headroom_ms", "share", "launch_ms", "bottleneck", "cause", "blocks_ms")
        figures = {name: entry[name] for name in names if name in entry}
        try:
            figures["bytes"] = pack(job.name, folder, self._plan.out, LANE, _MOST_TARS, more)
        except (ArchiveFullError, OSError) as error:
            self._failed(job.name, began, str(error))
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._most_bytes = max(self._most_bytes, figures["bytes"])
        self._results.add(Result(job.name, RECORDED, began, ended - began, figures))
        self._say(f"{job.name} recorded in {ended - began:.1f} s ({self._elapsed():.0f} s): {figures}")


def _with_path(environment: Any) -> dict[str, str]:
    """The script and `stepscope` are found from the working directory too."""
    path = environment.get("PYTHONPATH", "")
    return {**environment, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{path}" if path else str(Path.cwd())}


def _shortened(text: str, most: int = 5000) -> str:
    """The beginning, which says what went wrong, and the end of a traceback."""
    return text if len(text) <= most else f"{text[: most // 3]}\n...\n{text[-most * 2 // 3 :]}"
