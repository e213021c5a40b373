"""Fuzzer of the analysis: finds inputs that fail in an undocumented way, or take over a second or 500 MB.

    nice python -m benchmarks.fuzz.fuzzer [--inputs 1000000] [--seed 20261128] [--workers 1]
        [--state FILE] [--failures DIR]
    python -m benchmarks.fuzz.fuzzer --one INDEX

Input number i of a seed is always the same; targets.py lists the kinds of input, their frequency and how far each is
processed. Only stepscope's own errors are allowed, in one line; warnings are errors; results must add up, be finite and
survive a round trip through their document. With --state an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import pickle
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from benchmarks.fuzz.targets import TARGETS, remove_scratch
from stepscope.core.errors import StepscopeError

SLOW_SECONDS = 1.0
HANG_SECONDS = 5.0
MOST_BYTES = 500_000_000
MOST_ADDRESSES = 8 * 2**30
"""An input that asks for all memory there is gets a MemoryError, not the machine."""
CHUNK = 500
EXAMPLES_KEPT = 3


@dataclass(slots=True)
class Outcome:
    """Result of a number of inputs: count of each outcome, and the first inputs of each kind of failure."""

    ends: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    slowest_seconds: float = 0.0
    largest_bytes: int = 0

    def add(self, other: Outcome) -> None:
        self.ends += other.ends
        for name, seconds in other.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.slowest_seconds = max(self.slowest_seconds, other.slowest_seconds)
        self.largest_bytes = max(self.largest_bytes, other.largest_bytes)
        for kind, indices in other.failures.items():
            known = self.failures.setdefault(kind, [])
            known += indices[: EXAMPLES_KEPT - len(known)]


class TooSlowError(BaseException):
    """Raised by the alarm; no handler of the program may catch it."""


def main() -> int:
    """Run the inputs and print the outcomes; return 1 if any failed."""
    options = _options()
    if options.one is not None:
        _prepare()
        name, content = _input(options.seed, options.one)
        sys.stdout.write(f"{name}: {repr(content)[:4000]}\n")
        end = _run(name, content, _random(options.seed, f"{options.one}:run"))
        sys.stdout.write(f"{end}\n")
        return 0
    done, outcome = _load(options)
    began, first = time.monotonic(), done
    starts = range(done, options.inputs, CHUNK)
    for count, result in _results(options, starts):
        done += count
        outcome.add(result)
        if options.state is not None:
            _save(options, done, outcome)
        if done % (20 * CHUNK) < CHUNK or done >= options.inputs:
            rate = (done - first) / (time.monotonic() - began)
            failed = sum(outcome.ends[end] for end in outcome.ends if end.startswith("FAILED"))
            sys.stderr.write(f"{done:,} of {options.inputs:,} inputs, {rate:,.0f}/s, {failed} failed\n")
    _report(options, outcome, done)
    return 1 if outcome.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=20261128)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--state", type=Path, help="file for the progress of the run")
    parser.add_argument("--failures", type=Path, help="folder for inputs that failed")
    parser.add_argument("--one", type=int, help="show and run this input only, with its traceback")
    return parser.parse_args()


def _results(options: argparse.Namespace, starts: range) -> Iterator[tuple[int, Outcome]]:
    sizes = [min(CHUNK, options.inputs - start) for start in starts]
    if options.workers == 1:
        _prepare()
        for start, size in zip(starts, sizes, strict=True):
            yield size, run_chunk(options.seed, start, size)
        return
    with ProcessPoolExecutor(options.workers, initializer=_prepare) as pool:
        yield from zip(sizes, pool.map(run_chunk, [options.seed] * len(sizes), starts, sizes), strict=True)


def _prepare() -> None:
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGVTALRM, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TooSlowError(f"took more than {HANG_SECONDS} s of processor time")


def run_chunk(seed: int, start: int, size: int) -> Outcome:
    """Run `size` inputs, starting at number `start`."""
    outcome = Outcome()
    try:
        for index in range(start, start + size):
            name, content = _input(seed, index)
            began, held = time.process_time(), _peak_bytes()
            try:
                end = _run(name, content, _random(seed, f"{index}:run"))
                _check_cost(time.process_time() - began, _peak_bytes() - held)
            except (Exception, TooSlowError) as error:  # whatever it is, it is a finding
                end = f"FAILED {name}"
                outcome.failures.setdefault(_kind(error), []).append(index)
            outcome.ends[end] += 1
            took = time.process_time() - began
            outcome.seconds[name] = outcome.seconds.get(name, 0.0) + took
            outcome.slowest_seconds = max(outcome.slowest_seconds, took)
        outcome.largest_bytes = _peak_bytes()
    finally:
        remove_scratch()
    return outcome


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _check_cost(seconds: float, more_bytes: int) -> None:
    if seconds > SLOW_SECONDS:
        raise TooSlowError(f"took more than {SLOW_SECONDS} s of processor time")
    if more_bytes > MOST_BYTES:
        raise MemoryError(f"took more than {MOST_BYTES} bytes")


def _random(seed: int, index: int | str) -> Random:
    return Random(f"{seed}:{index}")


def _input(seed: int, index: int) -> tuple[str, Any]:
    random = _random(seed, index)
    name = random.choices(list(TARGETS), [share for share, _, _ in TARGETS.values()])[0]
    return name, TARGETS[name][1](random)


def _run(name: str, content: Any, random: Random) -> str:
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        return f"{name}: {TARGETS[name][2](content, random)}"
    except StepscopeError as error:
        message = str(error)
        if "\n" in message or not message.isprintable():
            raise ValueError(f"a refusal that is no line of text: {message!r}") from error
        return f"{name}: refused"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _kind(error: BaseException) -> str:
    """Kind of a failure: the error and the innermost line of stepscope that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "stepscope" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} in {where}: {str(error)[:120]}"


def _load(options: argparse.Namespace) -> tuple[int, Outcome]:
    if options.state is None or not options.state.is_file():
        return 0, Outcome()
    kept = json.loads(options.state.read_text())
    if kept["seed"] != options.seed:
        raise SystemExit(f"{options.state} is of seed {kept['seed']}; give --seed {kept['seed']} or another --state")
    return kept.pop("done"), Outcome(
        Counter(kept["ends"]),
        kept["failures"],
        kept["seconds"],
        kept["slowest_seconds"],
        kept["largest_bytes"],
    )


def _save(options: argparse.Namespace, done: int, outcome: Outcome) -> None:
    state = {
        "seed": options.seed,
        "done": done,
        "ends": outcome.ends,
        "failures": outcome.failures,
        "seconds": outcome.seconds,
        "slowest_seconds": outcome.slowest_seconds,
        "largest_bytes": outcome.largest_bytes,
    }
    unfinished = options.state.with_suffix(".tmp")
    unfinished.write_text(json.dumps(state))
    unfinished.replace(options.state)


def _report(options: argparse.Namespace, outcome: Outcome, done: int) -> None:
    most = f"slowest {outcome.slowest_seconds:.2f} s, most memory {outcome.largest_bytes / 1e6:,.0f} MB"
    print(f"seed {options.seed}: {done:,} inputs, {most}")
    for end, count in sorted(outcome.ends.items()):
        print(f"  {end}: {count:,}")
    for name, seconds in sorted(outcome.seconds.items()):
        number = sum(count for end, count in outcome.ends.items() if end.startswith((f"{name}:", f"FAILED {name}")))
        print(f"  {name}: {number:,} inputs, {1000 * seconds / number:.2f} ms each")
    for kind, indices in sorted(outcome.failures.items()):
        print(f"  {kind}\n    inputs {', '.join(map(str, indices))}: --seed {options.seed} --one {indices[0]}")
        if options.failures is not None:
            options.failures.mkdir(parents=True, exist_ok=True)
            for index in indices:
                (options.failures / f"{options.seed}-{index}").write_bytes(pickle.dumps(_input(options.seed, index)))


if __name__ == "__main__":
    raise SystemExit(main())
