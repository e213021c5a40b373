"""Overhead of stepscope.profile in a training loop. Ratios of blocks that alternate within one process.

    python -m benchmarks.speed.profile_overhead [--device cuda] [--step-ms 3,30] [--host-bound]
        [--blocks 40] [--out FILE]

The step is that of a transformer (`training_step`) of the given length. Cases, compared with the same loop without
stepscope: `off` (enabled=False), `armed` (telemetry of every step, no capture active), `telemetry` (also with scalars
on the device, the model watched, and an OpenTelemetry meter if installed). It prints the time inside of stepscope's
calls a step (p50, p99, mean, by the host's clock: on an idle machine), of `prof.step` alone and with a wait for data
and a phase; on a CPU each step also walks through 64 MB, as caches are cold after real work. Captures are compared with
torch.profiler with the same options: the profiled steps, the stop of the recording, and the steps after it, in which
torch exports and stepscope writes on another thread.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

import stepscope
from benchmarks.measurement import Interval, interval_of
from benchmarks.training_step import Step, Workload, seconds_per_step
from stepscope.training import once

_SETTLE = 3
"""Steps before something is timed."""
_SETTLE_SECONDS, _BLOCK_SECONDS = 0.3, 0.5
"""Before a block's clock starts, as what begins a measurement (threads, files) is once a job; and how long it runs."""
_NEVER = 10**9
_CAPTURED = 3
_WALKED_BYTES = 64 << 20


@contextmanager
def _bare(_: Path) -> Iterator[Step]:
    yield lambda: None


@contextmanager
def _off(out: Path) -> Iterator[Step]:
    with stepscope.profile("off", out, enabled=False) as prof:
        yield lambda: prof.step(tokens=1)


@contextmanager
def _armed(out: Path) -> Iterator[Step]:
    with stepscope.profile("armed", out, once(wait=_NEVER)) as prof:
        yield lambda: prof.step(tokens=1, loss=1.0)


@contextmanager
def _telemetry(workload: Workload, out: Path) -> Iterator[Step]:
    with stepscope.profile("telemetry", out, once(wait=_NEVER), export="otel") as prof:
        prof.watch(workload.model)
        yield lambda: prof.step(tokens=1, loss=workload.loss, grad_norm=workload.loss)


def _provide_meters() -> None:
    """Have OpenTelemetry keep what is exported to it, where it is installed."""
    try:
        from opentelemetry.metrics import set_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    except ImportError:
        return
    set_meter_provider(MeterProvider(metric_readers=[InMemoryMetricReader()]))


def armed_cost(workload: Workload, blocks: int, out: Path) -> dict[str, Interval]:
    """Ratio of each case's time to the bare loop's, block against neighbouring block, with a 95% interval."""
    cases: dict[str, Callable[[Path], AbstractContextManager[Step]]] = {
        "off": _off,
        "armed": _armed,
        "telemetry": functools.partial(_telemetry, workload),
    }
    num_steps = max(10, round(1e3 * _BLOCK_SECONDS / workload.step_ms))
    ratios: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(blocks):
        times = {}
        order = ["bare", *cases]
        for name in order if number % 2 == 0 else reversed(order):
            with (cases | {"bare": _bare})[name](out) as mark:

                def marked(mark: Step = mark) -> None:
                    workload.step()
                    mark()

                settled = time.perf_counter() + _SETTLE_SECONDS
                while time.perf_counter() < settled:
                    marked()
                times[name] = seconds_per_step(marked, num_steps, workload.synchronize)
        for name in cases:
            ratios[name].append(times[name] / times["bare"])
    return {name: interval_of(values) for name, values in ratios.items()}


def host_cost_us(num_steps: int, out: Path) -> float:
    """Microseconds of the training thread that an armed `prof.step` takes."""
    with _armed(out) as mark:
        for _ in range(_SETTLE):
            mark()
        started = time.perf_counter()
        for _ in range(num_steps):
            mark()
        return (time.perf_counter() - started) / num_steps * 1e6


def call_times_us(workload: Workload, num_steps: int, out: Path) -> dict[str, dict[str, float]]:
    """Microseconds that the training thread spends inside stepscope a step: in all calls, and in `prof.step` alone."""
    walked = torch.zeros(_WALKED_BYTES // 4 if workload.device.type == "cpu" else 0)
    every_call, step_alone = [], []
    with stepscope.profile("calls", out, once(wait=_NEVER)) as prof:
        batches = iter(prof.data(itertools.repeat(None)))
        for _ in range(_SETTLE + num_steps):
            asked = time.perf_counter()
            next(batches)
            phase = prof.phase("work")
            phase.__enter__()
            begun = time.perf_counter()
            workload.step()
            walked.add_(1.0)
            ended = time.perf_counter()
            phase.__exit__(None, None, None)
            prof.step(tokens=1, loss=1.0)
            every_call.append(1e6 * (begun - asked + time.perf_counter() - ended))
        for _ in range(num_steps):
            workload.step()
            walked.add_(1.0)
            ended = time.perf_counter()
            prof.step(tokens=1, loss=1.0)
            step_alone.append(1e6 * (time.perf_counter() - ended))
    return {"prof.data, phase and step": _spread(every_call[_SETTLE:]), "prof.step alone": _spread(step_alone)}


def _spread(numbers: list[float]) -> dict[str, float]:
    p50, p99 = statistics.quantiles(numbers, n=100)[49::49]
    return {"p50": p50, "p99": p99, "mean": statistics.fmean(numbers)}


def _capture_by_torch(workload: Workload, out: Path) -> dict[str, float]:
    target = out / "torch.json.gz"
    profiler = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=_SETTLE, warmup=1, active=_CAPTURED, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(target)),
        record_shapes=True,
    )
    with profiler:
        return _capture_times(workload, profiler.step)


def _capture_by_stepscope(workload: Workload, out: Path) -> dict[str, float]:
    with stepscope.profile("capture", out, once(wait=_SETTLE, warmup=1, active=_CAPTURED)) as prof:
        return _capture_times(workload, prof.step)


def _capture_times(workload: Workload, mark: Step) -> dict[str, float]:
    """Milliseconds: a captured step, the stop after the last one, and the slowest of the steps that follow."""
    ends = []
    for _ in range(_SETTLE + 1 + _CAPTURED + 10):
        workload.synchronize()
        began = time.perf_counter()
        workload.step()
        workload.synchronize()
        ended = time.perf_counter()
        mark()
        ends.append((ended - began, time.perf_counter() - ended))
    captured, after = ends[_SETTLE + 1 : _SETTLE + 1 + _CAPTURED], ends[_SETTLE + 1 + _CAPTURED :]
    return {
        "captured_step_ms": 1e3 * statistics.median(step for step, _ in captured),
        "stall_ms": 1e3 * captured[-1][1],
        "slowest_step_after_ms": 1e3 * max(step + mark for step, mark in after),
    }


def capture_cost(workload: Workload, repeats: int, out: Path) -> dict[str, Any]:
    """Both ways in turn; medians, and the interval of the captured steps' ratio."""
    found: dict[str, list[dict[str, float]]] = {"torch": [], "stepscope": []}
    for _ in range(repeats):
        found["torch"].append(_capture_by_torch(workload, out))
        found["stepscope"].append(_capture_by_stepscope(workload, out))
    medians = {
        who: {name: statistics.median(times[name] for times in all_times) for name in all_times[0]}
        for who, all_times in found.items()
    }
    pairs = zip(found["stepscope"], found["torch"], strict=True)
    ratios = [ours["captured_step_ms"] / theirs["captured_step_ms"] for ours, theirs in pairs]
    return medians | {"captured_step_ratio": interval_of(ratios)._asdict()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--step-ms", default="3,30")
    parser.add_argument("--host-bound", action="store_true")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--captures", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.getLogger("stepscope").setLevel(logging.ERROR)  # a run that is never captured says so each time
    torch.set_num_threads(1)
    _provide_meters()
    results: dict[str, Any] = {"torch": torch.__version__, "device": options.device}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        results["host_us_per_step"] = host_cost_us(20_000, out)
        print(f"prof.step: {results['host_us_per_step']:.1f} us of the training thread")
        for step_ms in map(float, options.step_ms.split(",")):
            workload = Workload(options.device, step_ms, host_bound=options.host_bound)
            print(workload)
            with _telemetry(workload, out) as mark:
                seconds = seconds_per_step(mark, 20_000, workload.synchronize)
                print(f"  prof.step with all telemetry: {seconds * 1e6:.1f} us")
            case: dict[str, Any] = {"step_ms": workload.step_ms, "launch_ms": workload.launch_ms}
            case["calls_us"] = call_times_us(workload, 1000, out)
            for calls, found in case["calls_us"].items():
                shares = (f"{name} {us:.0f} us ({us / workload.step_ms / 10:.2f}%)" for name, us in found.items())
                print(f"  inside of {calls}: {', '.join(shares)}")
            for name, ratio in armed_cost(workload, options.blocks, out).items():
                print(f"  {name:<9} / bare: {ratio}")
                case[name] = ratio._asdict()
            case["capture"] = capture_cost(workload, options.captures, out)
            for who in ("torch", "stepscope"):
                times = {name: round(value, 1) for name, value in case["capture"][who].items()}
                print(f"  capture by {who}: {times}")
            print(f"  profiled steps / torch's: {Interval(**case['capture']['captured_step_ratio'])}")
            results[f"{step_ms:g} ms"] = case
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
