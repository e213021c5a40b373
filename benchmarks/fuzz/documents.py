"""Damaged documents for the fuzzer: files of a run beside its traces, operation tables, gates of comparisons.

Half of them are damaged as text; in the others values are replaced by odd ones, so that more of them can be decoded.
"""

from __future__ import annotations

import io
import json
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

from benchmarks.fuzz.jobs import base_jobs, odd
from benchmarks.fuzz.traces import damaged

_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 0.5, -0.5, 1.5, 1e308, -1e308, 1e-300, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30,
    "", "x", "data_loading", "wait", "gpu", "\x00", "\ud800", "<script>", "[red]", "n" * 3000, [], [0], {}, {"x": 1},
)  # fmt: skip
_GATE_PARTS = (
    "step_time", "step_time_mean", "mfu", "busbw", "kernel:", "kernel:(", "kernel:nccl.*", "collective:all_reduce",
    "heading:wait", "cause:x", "data_loading", ":", "+", "-", "3", "0", "1e9", "9" * 400, ".5", "%", "ms", ",", " ",
    "\n", "\x00", "(?:a+)+b", "[", "\\", "é",
)  # fmt: skip
_KINDS = (
    "forward-compute", "forward-send", "forward-recv", "backward-compute", "backward-send", "backward-recv", "gc",
    "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter", "optimizer",
    "params-all-gather",
)  # fmt: skip


def make_analysis(random: Random) -> bytes:
    """A stored analysis."""
    return _made(random, random.choice(_seeds()["analysis"]))


def make_timeline(random: Random) -> bytes:
    """Stored timelines."""
    return _made(random, random.choice(_seeds()["timeline"]))


def make_manifest(random: Random) -> bytes:
    """A run's manifest."""
    return _made(random, _seeds()["run"][0])


def make_steps(random: Random) -> bytes:
    """Lines of step telemetry."""
    lines = [_made(random, line) if random.random() < 0.3 else line for line in _seeds()["steps"]]
    if random.random() < 0.3:
        random.shuffle(lines)
    text = b"\n".join(lines)
    return damaged(random, text, _seeds()["steps"]) if random.random() < 0.4 else text


def make_gates(random: Random) -> str:
    """Conditions for --fail-on."""
    if random.random() < 0.4:
        metric = random.choice(("step_time", "mfu", "kernel:nccl.*", "heading:wait", random.choice(_GATE_PARTS)))
        return f"{metric}:{random.choice('+-')}{random.choice(_GATE_PARTS[14:19])}{random.choice(('%', 'ms', ''))}"
    return "".join(random.choices(_GATE_PARTS, k=random.randint(0, 12)))


def make_table(random: Random) -> tuple[bytes, bytes | None]:
    """An operation table and its description."""
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, list[Any]] = json.loads(_table_seed())
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        name = random.choice(sorted(columns))
        rows = columns[name]
        change = random.randrange(5)
        value = random.choice((None, 0, -1, 1, 3, 2**40, 2**63 - 1, 1e308, float("nan"), float("inf"), -0.5, "x", True))
        if change == 0:
            columns[name] = [value] * len(rows)
        elif change == 1:
            rows[random.randrange(len(rows))] = value if random.random() < 0.3 else random.choice(rows)
        elif change == 2:
            kept = [random.random() < 0.9 for _ in rows]
            columns = {key: [v for v, keep in zip(col, kept, strict=True) if keep] for key, col in columns.items()}
        elif change == 3:
            columns[name] = random.sample(rows, len(rows))
        elif random.random() < 0.2:
            del columns[name]
        if not columns or not next(iter(columns.values())):
            break
    target = io.BytesIO()
    try:
        parquet.write_table(pa.table(columns), target)
    except (pa.ArrowException, OverflowError):  # no column can hold such a mixture
        parquet.write_table(pa.table({"x": [1]}), target)
    about = random.choice(
        (b"world_size: 4\ndsp_size: 1\n", b"dsp_size: 0", b"dsp_size: 99999999999999999999", b"\xff:")
    )
    return target.getvalue(), about if random.random() < 0.6 else None


@cache
def _table_seed() -> bytes:
    """Two stages, two replicas, two steps, two micro-batches."""
    names = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc")
    rows: list[tuple[Any, ...]] = []
    for replica in range(2):
        for stage in range(2):
            for step in range(2):
                where = (replica, stage, 2 * stage + replica, step)
                for place, kind in enumerate(_KINDS[:6]):
                    if ("send" in kind) == (stage == ("backward" in kind)) or "compute" in kind:
                        rows += [(*where, kind, 3.0 * place + batch, 0.9, batch, -1, -1) for batch in range(2)]
                rows += [(*where, kind, 30.0 + at, 0.5, 0, -1, -1) for at, kind in enumerate(_KINDS[6:])]
    return json.dumps(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))).encode()


def _made(random: Random, seed: bytes) -> bytes:
    if random.random() < 0.5:
        return damaged(random, seed, _seeds()["analysis"])
    document = json.loads(seed)
    for _ in range(random.choice((1, 1, 2, 4))):
        _replace(random, document)
    return json.dumps(document).encode()


def _replace(random: Random, value: Any) -> None:
    """Replace a random value by an odd one, mostly of the same kind."""
    for _ in range(12):
        places = sorted(value) if isinstance(value, dict) else range(len(value))
        if not places:
            return
        place = random.choice(places)
        inner = value[place]
        if isinstance(inner, (dict, list)) and inner and random.random() < 0.85:
            value = inner
            continue
        alike = [one for one in _ODD if type(one) is type(inner)]
        if random.random() < 0.1:
            if isinstance(value, list):
                value.extend(deepcopy(value[:1] * random.choice((1, 50))))
            else:
                del value[place]
        else:
            value[place] = odd(random, alike if alike and random.random() < 0.7 else _ODD)
        return


@cache
def _seeds() -> dict[str, list[bytes]]:
    from stepscope.analyzer.job import analyse_job
    from stepscope.analyzer.rank import view_rank
    from stepscope.analyzer.summaries import JobContext, timeline_document
    from stepscope.store.documents import encode_document, encode_timelines
    from stepscope.trace.formats.kineto.reader import read_kineto

    analyses, timelines = [], []
    for job in base_jobs()[:4]:
        texts = [json.dumps(document).encode() for document in json.loads(job)]
        traces = [read_kineto(io.BytesIO(text), path="t.json", file_bytes=len(text))[0] for text in texts]
        analysis, views = analyse_job([view_rank(trace, rank) for rank, trace in enumerate(traces)], JobContext())
        analyses.append(encode_document(analysis))
        timelines.append(encode_timelines([timeline_document(view) for view in views]))
    run = {
        "schema": "stepscope.run/1", "run": "x", "host": "n", "world_size": 2, "mesh": {"dp": 2, "tp": 1},
        "num_cpus": 8, "versions": {"torch": "2.13"}, "environment": {"NCCL_DEBUG": "INFO"}, "unprofiled_step_ms": 0.1,
        "attempts": [{"start_ns": 1, "end_ns": 2, "ended": "finished", "world_size": 2}],
    }  # fmt: skip
    steps = [
        {"index": i, "start_ns": 10**18 + i * 10**6, "end_ns": 10**18 + (i + 1) * 10**6, "captured": 6 <= i < 9,
         "state": "wait" if i < 5 or i > 9 else "active", "data_wait_ns": 1000 * i, "tokens": 4096, "memory_bytes": 5}
        for i in range(14)
    ]  # fmt: skip
    spans = [
        {"step": i // 3, "time_us": 10**15 + 1000 * i, "log_type_name": name, "value": 0.5, "event_name": "loss"}
        for i, name in enumerate(3 * ["fetching_batch_end", "fwd_bwd_end", "metric_value"])
    ]
    return {
        "analysis": analyses,
        "timeline": timelines,
        "run": [json.dumps(run).encode()],
        "steps": [json.dumps(line).encode() for line in [*steps, *spans]],
    }
