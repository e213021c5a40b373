"""Ingest, size and queries of the embedded history, beside DuckDB's own file and VictoriaMetrics, on the same samples.

`python -m benchmarks.history.store RECORDING [--gpus 1000] [--hours 10] [--location DIR|URL] [--beside duckdb,vm]`
prints one JSON document. RECORDING is `nvml_gpm_samples_5hz.csv` (see `fleet.py`). `--moto` writes to an S3 server that
it starts; with `--location s3://...` the endpoint and credentials are those of the environment.

Ingest is CPU time of the writing process, user and system: `append` of one block a scrape of the fleet, with the GPUs
in another order each time; `flush` of every third; `compaction` into hourly files. Lower resolution is counted beside.
Queries are asked through `history_at` in a process of its own: the first one, and the median of 9 warm ones; ms of wall
time, with CPU time beside, which says more on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from benchmarks.history.fleet import METRICS, START_NS, Fleet, gpu_labels
from benchmarks.history.servers import victoria_metrics_server
from stepscope.store.history import maintenance
from stepscope.store.history.catalog import TIER_MS
from stepscope.store.history.embedded import history_at
from stepscope.store.history.places import place_of
from stepscope.store.history.questions import GroupBy, Question, TimeRange
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter

_SECOND = 10**9
_HOUR = 3600 * _SECOND
_OF_FLUSH = 3
_WARM = 9
_METRIC = "stepscope_gpu_power_watts"
_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


def ingest(recording: Path, location: str, num_gpus: int, num_hours: int) -> dict[str, Any]:
    """Write the samples of a fleet; what it cost, and its size."""
    maintenance.GRACE_SECONDS = 1
    fleet = Fleet(recording, num_gpus)
    now = [START_NS]
    writer = HistoryWriter(location, clock=lambda: now[0])
    index, chance = np.arange(num_gpus, dtype=np.int32), np.random.default_rng(1)
    cpu: dict[str, float] = defaultdict(float)

    def timed(what: str, do: Callable[[], Any]) -> Any:
        begin = time.process_time()
        answer = do()
        cpu[what] += time.process_time() - begin
        return answer

    def maintain() -> bool:
        begin, compacted = time.process_time(), writer.catalog.compacted
        worked = writer.maintain()
        is_lower = worked and writer.catalog.compacted == compacted
        cpu["lower_resolution" if is_lower else "compaction"] += time.process_time() - begin
        return worked

    begin, flush_seconds = time.monotonic(), []
    for number, (time_ns, values) in enumerate(fleet.scrapes(num_hours), 1):
        now[0] = time_ns
        order = chance.permutation(num_gpus)
        entities = tuple(fleet.entities[place] for place in order)
        block = SampleBlock(
            entities, index, np.full(num_gpus, time_ns), {name: column[order] for name, column in values.items()}
        )
        timed("append", partial(writer.append, block))
        if number % _OF_FLUSH == 0:
            start = time.monotonic()
            timed("flush", writer.flush)
            flush_seconds.append(time.monotonic() - start)
            while maintain():
                pass
    timed("compaction", writer.compact)
    time.sleep(maintenance.GRACE_SECONDS + 0.1)
    writer.maintain()  # removes the segments: hours pass faster here than readers need
    files = writer.catalog.files
    writer.close()
    samples = num_gpus * len(METRICS) * num_hours * 3600 // fleet.step_seconds
    return {
        "samples": samples,
        "cpu_seconds": {what: round(seconds, 2) for what, seconds in cpu.items()},
        "million_samples_per_cpu_second": round(samples / 1e6 / (sum(cpu.values()) - cpu["lower_resolution"]), 2),
        "million_samples_per_cpu_second_with_lower_resolution": round(samples / 1e6 / sum(cpu.values()), 2),
        "bytes_per_sample": {
            tier: round(sum(file.bytes for file in files if file.tier == tier) / samples, 3) for tier in TIER_MS
        },
        "flush_wall_ms": {"median": _ms(statistics.median(flush_seconds)), "max": _ms(max(flush_seconds))},
        "wall_seconds": round(time.monotonic() - begin, 1),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def questions(num_gpus: int, num_hours: int) -> dict[str, tuple[Question, TimeRange]]:
    """What is asked."""
    end, uuid = START_NS + num_hours * _HOUR, dict(gpu_labels(num_gpus)[num_gpus // 2])["uuid"]
    one, fleet = Question(_METRIC, where={"uuid": uuid}), Question(_METRIC)
    whole = TimeRange(START_NS, end, 60 * _SECOND)
    return {
        "one GPU, 10 h by minute": (one, whole),
        "one GPU, 10 h by 15 s": (one, TimeRange(START_NS, end, 15 * _SECOND)),
        "fleet by GPU, 15 min": (fleet, TimeRange(end - 900 * _SECOND, end, 900 * _SECOND)),
        "fleet by GPU, 15 min by 15 s": (fleet, TimeRange(end - 900 * _SECOND, end, 15 * _SECOND)),
        "fleet mean, 10 h by minute": (Question(_METRIC, ()), whole),
        "fleet by rack, 10 h by minute": (Question(_METRIC, (GroupBy.RACK,)), whole),
    }


def ask(location: str, num_gpus: int, num_hours: int) -> dict[str, Any]:
    """Times of questions to the history; the first of each, and the median of warm ones."""
    history = history_at(location)
    return {
        name: _times(partial(history.range, question, span))
        for name, (question, span) in questions(num_gpus, num_hours).items()
    }


def _times(do: Callable[[], Any]) -> dict[str, float]:
    wall, cpu = [], []
    for _ in range(1 + _WARM):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        do()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - begin_cpu)
    return {
        "first_ms": _ms(wall[0]),
        "median_ms": _ms(statistics.median(wall[1:])),
        "median_cpu_ms": _ms(statistics.median(cpu[1:])),
    }


def beside_duckdb(recording: Path, folder: Path, num_gpus: int, num_hours: int, *, wide: bool) -> dict[str, Any]:
    """The same samples in a file of DuckDB, inserted by flushes: a column a metric, or a row a sample."""
    import duckdb
    import pyarrow as pa

    path = folder / f"{'wide' if wide else 'narrow'}.duckdb"
    connection = duckdb.connect(str(path))
    names = [name.removeprefix("stepscope_gpu_") for name in METRICS]
    columns = ", ".join(f"{name} DOUBLE" for name in names) if wide else "metric UTINYINT, value DOUBLE"
    connection.execute(f"CREATE TABLE samples (time TIMESTAMP, gpu INTEGER, {columns})")
    fleet, gpus = Fleet(recording, num_gpus), np.arange(num_gpus, dtype=np.int32)
    cpu, waiting = 0.0, list[Any]()
    for number, (time_ns, values) in enumerate(fleet.scrapes(num_hours), 1):
        begin = time.process_time()
        repeat = 1 if wide else len(names)
        times = pa.array(np.full(num_gpus * repeat, time_ns // 10**6)).cast(pa.timestamp("ms"))
        rows = {"time": times, "gpu": np.tile(gpus, repeat)}
        if wide:
            rows |= dict(zip(names, values.values(), strict=True))
        else:
            rows["metric"] = np.repeat(np.arange(len(names), dtype=np.uint8), num_gpus)
            rows["value"] = np.concatenate(list(values.values()))
        waiting.append(pa.record_batch(rows))
        if number % _OF_FLUSH == 0:
            connection.register("waiting", pa.Table.from_batches(waiting))
            connection.execute("INSERT INTO samples SELECT * FROM waiting")
            waiting.clear()
        cpu += time.process_time() - begin
    begin = time.process_time()
    connection.execute("CHECKPOINT")
    cpu += time.process_time() - begin
    samples = num_gpus * len(names) * num_hours * 720
    value, only = ("power_watts", "true") if wide else ("value", "metric = 2")
    end = f"epoch_ms({START_NS // 10**6 + num_hours * 3_600_000})"
    minute = "(epoch_ms(time) + 59999) // 60000"
    by_gpu = f"SELECT gpu, {minute} AS k, avg({value}) AS v FROM samples WHERE {only} GROUP BY gpu, k"
    source = f"FROM samples WHERE {only}"
    asked = {
        "one GPU, 10 h by minute": f"SELECT {minute} AS k, avg({value}) {source} AND gpu = {num_gpus // 2} GROUP BY k",
        "fleet by GPU, 15 min": f"SELECT gpu, avg({value}) {source} AND time > {end} - INTERVAL 15 MINUTE GROUP BY gpu",
        "fleet mean, 10 h by minute": f"SELECT k, avg(v) FROM ({by_gpu}) GROUP BY k",
    }
    answer = {name: _times(partial(_fetch, connection, sql)) for name, sql in asked.items()}
    connection.close()
    return {
        "bytes_per_sample": round(path.stat().st_size / samples, 3),
        "million_samples_per_cpu_second": round(samples / 1e6 / cpu, 2),
        "queries": answer,
    }


def _fetch(connection: Any, sql: str) -> None:
    connection.execute(sql).fetchnumpy()


def beside_victoria_metrics(recording: Path, folder: Path, num_gpus: int, num_hours: int) -> dict[str, Any]:
    """The same samples in VictoriaMetrics, by its JSON import."""
    fleet = Fleet(recording, num_gpus)
    with victoria_metrics_server(folder) as url:
        begin = time.monotonic()
        for hour in range(num_hours):
            first = START_NS // 10**6 + hour * 3_600_000 + fleet.step_seconds * 1000
            times = list(range(first, first + 3_600_000, fleet.step_seconds * 1000))
            values = fleet.hour()
            for gpu in range(num_gpus):
                labels = dict(fleet.entities[gpu])
                lines = (
                    json.dumps(
                        {"metric": {"__name__": name, **labels}, "values": column[:, gpu].tolist(), "timestamps": times}
                    )
                    for name, column in values.items()
                )
                urllib.request.urlopen(f"{url}/api/v1/import", data="\n".join(lines).encode(), timeout=60).close()
        seconds = time.monotonic() - begin
        for path in ("/internal/force_flush", "/internal/force_merge"):
            urllib.request.urlopen(url + path, timeout=300).close()
        time.sleep(10)
        end = START_NS // _SECOND + num_hours * 3600
        uuid = dict(fleet.entities[num_gpus // 2])["uuid"]
        asked = {
            "one GPU, 10 h by minute": (f'avg_over_time({_METRIC}{{uuid="{uuid}"}}[1m])', num_hours * 3600, 60),
            "fleet by GPU, 15 min": (f"avg_over_time({_METRIC}[15m])", 0, 900),
            "fleet mean, 10 h by minute": (f"avg(avg_over_time({_METRIC}[1m]))", num_hours * 3600, 60),
        }

        def query(promql: str, seconds: int, step: int) -> None:
            form = urllib.parse.urlencode(
                {"query": promql, "start": end - seconds, "end": end, "step": step, "nocache": 1}
            )
            with urllib.request.urlopen(f"{url}/api/v1/query_range?{form}", timeout=60) as reply:
                json.load(reply)

        answer = {name: _times(partial(query, *one)) for name, one in asked.items()}
    samples = num_gpus * len(METRICS) * num_hours * 720
    data = folder / "victoria-metrics" / "data"
    size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
    index = sum(path.stat().st_size for path in (folder / "victoria-metrics" / "indexdb").rglob("*") if path.is_file())
    return {
        "samples": samples,
        "bytes_per_sample": round(size / samples, 3),
        "bytes_per_sample_with_index": round((size + index) / samples, 3),
        "import_wall_seconds": round(seconds, 1),
        "queries": answer,
    }


@contextmanager
def _moto() -> Iterator[None]:
    """An S3 server in a process of its own, in the environment of this one."""
    with subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        os.environ |= {
            "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        try:
            fsspec.filesystem("s3").mkdir("history")
            yield
        finally:
            server.stdin.close()


def _measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    location = arguments.location or ("s3://history/bench" if arguments.moto else str(folder / "history"))
    size = arguments.gpus, arguments.hours
    answer: dict[str, Any] = {"location": location.partition("://")[0] if "://" in location else "directory"}
    answer["ingest"] = ingest(arguments.recording, location, *size)
    answer["segments_left"] = len(place_of(location).sizes("segments"))
    command = [sys.executable, "-m", "benchmarks.history.store", str(arguments.recording), "--ask", location]
    command += ["--gpus", str(size[0]), "--hours", str(size[1])]
    answer["queries"] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if "duckdb" in arguments.beside:
        answer["duckdb_wide"] = beside_duckdb(arguments.recording, folder, *size, wide=True)
        answer["duckdb_narrow"] = beside_duckdb(arguments.recording, folder, *size, wide=False)
    if "vm" in arguments.beside and shutil.which("victoria-metrics"):
        answer["victoria_metrics"] = beside_victoria_metrics(arguments.recording, folder, arguments.vm_gpus, size[1])
    return answer


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=10)
    parser.add_argument("--location")
    parser.add_argument("--moto", action="store_true")
    parser.add_argument("--beside", default="")
    parser.add_argument("--vm-gpus", type=int, default=1000, help="of the fleet; its import is slow")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        print(json.dumps(ask(arguments.ask, arguments.gpus, arguments.hours)))
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments.moto:
            with _moto():
                answer = _measure(arguments, Path(folder))
        else:
            answer = _measure(arguments, Path(folder))
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
