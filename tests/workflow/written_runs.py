"""Run directories of running jobs, written by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from stepscope.core.documents.run_directory import Attempt, RankFile, RunManifest

STEP_NS = 100_000_000


def write_run(
    run: Path,
    *,
    num_steps: int,
    ranks: Iterable[int] = (0,),
    world_size: int | None = None,
    age_seconds: float = 0.0,
    waits_ns: Callable[[int], int] = lambda _: 0,
) -> Path:
    """A run without an end whose steps take 0.1 s, of which the newest ended so long ago."""
    ranks = list(ranks)
    begin_ns = time.time_ns() - int(age_seconds * 1e9) - num_steps * STEP_NS
    attempt = Attempt(begin_ns, None, None, world_size or len(ranks))
    manifest = RunManifest(run.name, "h", world_size or len(ranks), {}, 8, {}, {}, [attempt])
    (run / "steps").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(asdict(manifest)))
    for rank in ranks:
        lines = [
            json.dumps(
                {
                    "index": step,
                    "start_ns": begin_ns + step * STEP_NS,
                    "end_ns": begin_ns + (step + 1) * STEP_NS,
                    "data_wait_ns": waits_ns(step),
                }
            )
            for step in range(num_steps)
        ]
        (run / RankFile.STEPS.path(rank)).write_text("".join(f"{line}\n" for line in lines))
    return run
