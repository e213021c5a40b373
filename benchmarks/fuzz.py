"""Does any input make a parser fail in a way it does not document, or take more than five seconds?

    nice python -m benchmarks.fuzz [--inputs 1000000] [--seed 20261128] [--workers 1] [--state FILE] [--failures DIR]
    python -m benchmarks.fuzz --one INDEX

Input number i of a seed is always the same: a small trace, metadata or document, grown from a grammar or damaged byte
by byte and token by token, sometimes as gzip. It goes to the trace reader (a share of what can be read also through
the per-rank and the cross-rank half of an analysis) or to the decoder of run.json, analysis.json or timeline.json.
Only stepscope's own errors may come out; warnings are errors. With --state an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from benchmarks.fuzz_inputs import make_document, make_trace
from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.rank import view_rank
from stepscope.analyzer.summaries import JobContext
from stepscope.core.errors import StepscopeError
from stepscope.store.documents import decode_analysis, decode_manifest, decode_timelines
from stepscope.trace.kineto import read_ranks_stream

HANG_SECONDS = 5.0
CHUNK = 500
SHARE_OF_DOCUMENTS = 0.15
SHARE_ANALYSED = 0.04
EXAMPLES_KEPT = 3
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "analysis": decode_analysis,
    "run": decode_manifest,
    "timeline": decode_timelines,
}


@dataclass(slots=True)
class Outcome:
    """What a number of inputs came to: how often each end, and for each kind of failure where it was first seen."""

    ends: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[int]] = field(default_factory=dict)
    slowest_seconds: float = 0.0

    def add(self, other: Outcome) -> None:
        self.ends += other.ends
        self.slowest_seconds = max(self.slowest_seconds, other.slowest_seconds)
        for kind, indices in other.failures.items():
            known = self.failures.setdefault(kind, [])
            known += indices[: EXAMPLES_KEPT - len(known)]


class TooSlowError(BaseException):
    """Raised by the alarm; no handler of the program may catch it."""


def main() -> int:
    """Run the inputs, print what came out; 1 when there was a failure."""
    options = _options()
    if options.one is not None:
        _prepare()
        name, content = _input(options.seed, options.one)
        sys.stdout.write(f"{name}: {content[:2000]!r}\n")
        sys.stdout.write(f"{_run(name, content, _random(options.seed, options.one))}\n")
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
    parser.add_argument("--state", type=Path, help="where to keep how far the run has come")
    parser.add_argument("--failures", type=Path, help="a folder for inputs that failed")
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


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TooSlowError(f"took more than {HANG_SECONDS} s of processor time")


def run_chunk(seed: int, start: int, size: int) -> Outcome:
    """Run `size` inputs from number `start` on."""
    outcome = Outcome()
    for index in range(start, start + size):
        name, content = _input(seed, index)
        began = time.process_time()
        try:
            end = _run(name, content, _random(seed, index))
        except (Exception, TooSlowError, RecursionError) as error:  # whatever it is, it is a finding
            end = f"FAILED {name}"
            outcome.failures.setdefault(_kind(error), []).append(index)
        outcome.ends[end] += 1
        outcome.slowest_seconds = max(outcome.slowest_seconds, time.process_time() - began)
    return outcome


def _random(seed: int, index: int) -> Random:
    return Random(f"{seed}:{index}")


def _input(seed: int, index: int) -> tuple[str, bytes]:
    random = _random(seed, index)
    if random.random() < SHARE_OF_DOCUMENTS:
        return make_document(random)
    return "trace", make_trace(random)


def _run(name: str, content: bytes, random: Random) -> str:
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        if name != "trace":
            DECODERS[name](content)
            return f"{name}: decoded"
        return _read_and_analyse(content, random)
    except StepscopeError as error:
        if "\n" in str(error):
            raise ValueError("a refusal of several lines") from error
        return f"{name}: refused"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _read_and_analyse(content: bytes, random: Random) -> str:
    block_bytes = random.choice((300, 2000, 1 << 19, 1 << 19))
    traces = read_ranks_stream(io.BytesIO(content), path="rank0.json", file_bytes=len(content), block_bytes=block_bytes)
    for trace in traces:
        quality = trace.quality
        assert (trace.end_ns >= trace.start_ns).all()
        assert len(trace) <= quality.num_events
    if random.random() >= SHARE_ANALYSED:
        return "trace: read"
    views = [view_rank(trace, place) for place, trace in enumerate(traces)]
    analyse_job(views, JobContext())
    return "trace: analysed"


def _kind(error: BaseException) -> str:
    """The error, and the innermost line of ours that it came from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "stepscope" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} in {where}: {str(error)[:120]}"


def _load(options: argparse.Namespace) -> tuple[int, Outcome]:
    if options.state is None or not options.state.is_file():
        return 0, Outcome()
    kept = json.loads(options.state.read_text())
    if kept["seed"] != options.seed:
        raise SystemExit(f"{options.state} is of seed {kept['seed']}; give --seed {kept['seed']} or another --state")
    return kept["done"], Outcome(Counter(kept["ends"]), kept["failures"], kept["slowest_seconds"])


def _save(options: argparse.Namespace, done: int, outcome: Outcome) -> None:
    state = {
        "seed": options.seed,
        "done": done,
        "ends": outcome.ends,
        "failures": outcome.failures,
        "slowest_seconds": outcome.slowest_seconds,
    }
    unfinished = options.state.with_suffix(".tmp")
    unfinished.write_text(json.dumps(state))
    unfinished.replace(options.state)


def _report(options: argparse.Namespace, outcome: Outcome, done: int) -> None:
    print(f"seed {options.seed}: {done:,} inputs, slowest {outcome.slowest_seconds:.2f} s")
    for end, count in sorted(outcome.ends.items()):
        print(f"  {end}: {count:,}")
    for kind, indices in sorted(outcome.failures.items()):
        print(f"  {kind}\n    inputs {', '.join(map(str, indices))}: --seed {options.seed} --one {indices[0]}")
        if options.failures is not None:
            options.failures.mkdir(parents=True, exist_ok=True)
            for index in indices:
                (options.failures / f"{options.seed}-{index}").write_bytes(_input(options.seed, index)[1])


if __name__ == "__main__":
    raise SystemExit(main())
