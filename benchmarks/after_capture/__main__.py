"""Step time after a capture over that before it, of models that the host or the GPU bounds.

    python -m benchmarks.after_capture [MODEL...] [--beside-others MODEL...] [--captures 20] [--minutes N] [--out FILE]

needs a GPU; `--device cpu --tiny` proves that the code runs. All processes are started together and build their models;
then they are measured one model after another. Each line of FILE is one model, or what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.after_capture.comparison import Pair, beside_others, compare
from benchmarks.after_capture.models import MODELS, Place
from benchmarks.after_capture.process import TrainingProcess, serve

_BUILD_SECONDS = 150.0
_MOST_SECONDS = 45.0
"""A model may take; more would measure the same once more."""


def measure(
    models: list[str], beside: list[str], place: Place, num_captures: int, minutes: float, out: Path | None
) -> int:
    """Measure models one after another, a JSON line each; returns how many failed."""
    until = time.monotonic() + 60.0 * minutes
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cases = [(model, False) for model in models] + [(model, True) for model in beside]
    started = [(model, is_beside, [TrainingProcess(model, place) for _ in range(2)]) for model, is_beside in cases]
    failed: dict[int, str] = {}
    for number, (_, _, processes) in enumerate(started):
        for process in processes:
            try:
                process.ask("", max(until - time.monotonic() - 60.0, 10.0) if number else _BUILD_SECONDS)
            except RuntimeError as error:
                failed[number] = str(error)
    print(f"built in {time.monotonic() - until + 60 * minutes:.0f} s", file=sys.stderr, flush=True)
    for number, (model, is_beside, processes) in enumerate(started):
        left = until - time.monotonic()
        result: dict[str, Any] = {"model": model}
        began = time.monotonic()
        try:
            if number in failed:
                raise RuntimeError(failed[number])
            if left < 15.0:
                raise RuntimeError("no time left")
            pair = Pair(*processes)
            seconds = min(left / (len(started) - number), _MOST_SECONDS)
            result = beside_others(model, pair) if is_beside else compare(model, pair, seconds, num_captures)
        except RuntimeError as error:
            failed[number] = result["failed"] = str(error)
        result["exit_statuses"] = [process.end() for process in processes]
        result["seconds"] = round(time.monotonic() - began, 1)
        line = json.dumps(result)
        print(line, flush=True)
        if out:
            with out.open("a") as file:
                file.write(line + "\n")
    return len(failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"by default all: {', '.join(MODELS)}")
    parser.add_argument("--beside-others", nargs="*", default=[], help="models whose processes others profile too")
    parser.add_argument("--captures", type=int, default=20, help="to survive in a row; 0 for none")
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--out", type=Path, help="file to append one JSON line a model to")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the code")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    place = Place(options.device, options.tiny)
    if options.serve:
        serve(options.models[0], place)
        return
    models = options.models or ([] if options.beside_others else list(MODELS))
    num_failed = measure(models, options.beside_others, place, options.captures, options.minutes, options.out)
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    main()
