"""Accuracy of goodput: a real torchelastic job that is killed and resumes from its checkpoint, against its own clock.

    nice python -m benchmarks.accuracy.goodput [--steps 120] [--every 10] [--step-ms 40] [--seed 0] [-o DIR]

torchrun starts two ranks on gloo. Three times a rank (rank 1, rank 0, then both at once) is killed by SIGKILL at a
step drawn at random; torchrun restarts both, which load the latest checkpoint. Each rank notes the end of each step in
a file of its own, before anything else can happen. Lost and repeated steps have to be exact, restart and recovery
within a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from stepscope.core.documents.goodput import AttemptGoodput
from stepscope.workflow.goodput import read_goodput

ALLOWED_SECONDS = 1.0
KILLED_RANKS: tuple[tuple[int, ...], ...] = ((1,), (0,), (0, 1))
_NUM_RANKS = 2


@dataclass(frozen=True)
class Job:
    """A job to be killed.

    Attributes:
        kills: for each attempt but the last, the step after which ranks are killed, and which.
    """

    num_steps: int
    every: int
    step_ms: float
    kills: list[tuple[int, tuple[int, ...]]]


@dataclass(frozen=True)
class Restart:
    """What one restart cost: steps, and seconds."""

    num_lost: int
    restart_seconds: float
    recovery_seconds: float


def main() -> int:
    """Print the table; return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="folder in which the run is kept")
    options = parser.parse_args()
    output = options.output or Path(tempfile.mkdtemp())
    job = Job(options.steps, options.every, options.step_ms, drawn_kills(options.steps, options.seed))
    run_job(job, output)
    expected = truth(output, job)
    measured, total = reported(output)
    print(f"{'killed at':>12}  {'lost':>11}  {'restart s':>15}  {'recovery s':>15}")
    is_right = len(expected) == len(measured) == len(job.kills) and abs(total - 1.0) < 1e-9
    for (step, ranks), true, found in zip(job.kills, expected, measured, strict=False):
        killed = f"{step} ({'+'.join(map(str, ranks))})"
        print(
            f"{killed:>12}  {found.num_lost:>4} of {true.num_lost:>3}  {found.restart_seconds:>6.2f} of "
            f"{true.restart_seconds:>5.2f}  {found.recovery_seconds:>6.2f} of {true.recovery_seconds:>5.2f}"
        )
        is_right &= is_within(true, found)
    print("right" if is_right else "WRONG", f"(classes add up to {total:.9f}); {output / 'runs' / 'job'}")
    return 0 if is_right else 1


def is_within(true: Restart, found: Restart) -> bool:
    """Whether a restart was told right."""
    return (
        found.num_lost == true.num_lost
        and abs(found.restart_seconds - true.restart_seconds) <= ALLOWED_SECONDS
        and abs(found.recovery_seconds - true.recovery_seconds) <= ALLOWED_SECONDS
    )


def drawn_kills(num_steps: int, seed: int) -> list[tuple[int, tuple[int, ...]]]:
    """Steps at which ranks are killed, each later than the one before."""
    steps = sorted(random.Random(seed).sample(range(num_steps // 6, num_steps - 5), len(KILLED_RANKS)))
    return list(zip(steps, KILLED_RANKS, strict=True))


def run_job(job: Job, output: Path) -> None:
    """Run the job under torchrun until it is done."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "job.json").write_text(json.dumps(asdict(job)))
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(_NUM_RANKS)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", str(2 * len(job.kills))]
    command += ["--monitor-interval", "0.1", "-m", "benchmarks.accuracy.goodput_training", str(output)]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "STEPSCOPE_RUN": "job"}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else gloo finds addresses from before the restart
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=500, check=False)
    if done.returncode:
        raise RuntimeError(f"torchrun ended with {done.returncode}:\n{done.stderr[-4000:]}")


@dataclass(frozen=True)
class _Attempt:
    first_step: int
    began: float
    ends: list[float]


def truth(output: Path, job: Job) -> list[Restart]:
    """What each restart cost by the ranks' own notes."""
    attempts = []
    for number in range(len(job.kills) + 1):
        of_ranks = [_own_attempt(output / f"clock-{number}-{rank}") for rank in range(_NUM_RANKS)]
        steps = max(len(one.ends) for one in of_ranks)
        ends = [max(one.ends[step] for one in of_ranks if step < len(one.ends)) for step in range(steps)]
        attempts.append(_Attempt(of_ranks[0].first_step, min(one.began for one in of_ranks), ends))
    restarts = []
    reached = -1
    for before, after in pairwise(attempts):
        reached = max(reached, before.first_step + len(before.ends) - 1)
        num_lost = before.first_step + len(before.ends) - after.first_step
        recovered = after.ends[reached - after.first_step] - after.began
        restarts.append(Restart(max(num_lost, 0), after.began - before.ends[-1], recovered))
    return restarts


def _own_attempt(file: Path) -> _Attempt:
    first, began, *ends = file.read_text().splitlines()[-1].split()
    return _Attempt(int(first), float(began), [float(end) for end in ends])


def reported(output: Path) -> tuple[list[Restart], float]:
    """What stepscope says each restart cost, and the sum of all classes."""
    (job,) = read_goodput([str(output / "runs" / "job")]).jobs
    return restarts_of(job.attempts), sum(job.time.values())


def restarts_of(attempts: Sequence[AttemptGoodput]) -> list[Restart]:
    """The restarts of a job's attempts as the document has them."""
    restarts = []
    trained = [attempt for attempt in attempts if attempt.num_steps]
    for before, after in pairwise(trained):
        assert after.restart_seconds is not None
        lost = -1 if before.num_lost_steps is None else before.num_lost_steps
        restarts.append(Restart(lost, after.restart_seconds, after.recovery_seconds or 0.0))
    return restarts


if __name__ == "__main__":
    sys.exit(main())
