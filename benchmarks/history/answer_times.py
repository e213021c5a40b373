"""How long answers of 1,000 GPUs over an hour take: our own store, Prometheus and VictoriaMetrics, and their sizes.

    python -m benchmarks.history.answer_times [--nodes 125] [--out FILE]

Power with noise, energy and the job of each GPU every 15 s. Each question is put three times; the shortest counts.
Sizes: of the store's Parquet files, of a snapshot of Prometheus, of VictoriaMetrics' data and index.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.history.servers import (
    RecordedPage,
    Series,
    prometheus_server,
    sample_blocks,
    victoria_metrics_server,
    write_pages,
)
from stepscope.store.history.embedded import history_at
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import GroupBy, MetricHistory, Question, Statistic, TimeRange
from stepscope.store.history.writer import HistoryWriter

_POWER, _ENERGY = "stepscope_gpu_power_watts", "stepscope_gpu_energy_joules_total"
_GPUS, _SCRAPES, _SCRAPE_MS = 8, 240, 15_000
_QUESTIONS = {
    "power by GPU": Question(_POWER),
    "power of the fleet": Question(_POWER, ()),
    "power by job": Question(_POWER, (GroupBy.JOB,)),
    "power by user": Question(_POWER, (GroupBy.USER,), Statistic.SUM),
    "energy by GPU": Question(_ENERGY),
    "energy by user": Question(_ENERGY, (GroupBy.USER,), Statistic.SUM),
}


def _pages(nodes: int, begin_ms: int) -> Iterator[RecordedPage]:
    chance = random.Random(1)
    watts = [chance.uniform(200.0, 700.0) for _ in range(nodes * _GPUS)]
    joules = [0.0] * len(watts)
    for number in range(_SCRAPES):
        for node in range(nodes):
            target = (("instance", f"n{node}:9455"), ("rack", f"r{node // 8}"))
            job = (("job_id", str(node // 8)), ("job_kind", "slurm"))
            values: dict[Series, float] = {("stepscope_job_info", (*job, ("user", f"user{node // 32}"))): 1.0}
            for gpu in range(_GPUS):
                place = node * _GPUS + gpu
                watts[place] = round(min(max(watts[place] + chance.gauss(0.0, 20.0), 80.0), 700.0), 3)
                joules[place] = round(joules[place] + watts[place] * _SCRAPE_MS / 1e3, 3)
                labels = (("gpu", str(gpu)), ("uuid", f"GPU-{node}-{gpu}"))
                values[_POWER, labels] = watts[place]
                values[_ENERGY, labels] = joules[place]
                held = (*labels, *job, ("share", "exclusive"), ("source", "process"))
                values["stepscope_gpu_job_info", tuple(sorted(held))] = 1.0
            yield RecordedPage(target, begin_ms + number * _SCRAPE_MS + node * 100, values)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _request(url: str, method: str, path: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request(method, path)
    connection.getresponse().read()
    connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=125, help="of 8 GPUs each (125)")
    parser.add_argument("--out", type=Path, help="file for the figures, JSON")
    options = parser.parse_args()
    begin_ms = (int(time.time()) - 5400) // 3600 * 3_600_000
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="stepscope-answers-") as name, ExitStack() as stack:
        folder = Path(name)
        pages = list(_pages(options.nodes, begin_ms))
        prometheus = stack.enter_context(prometheus_server(folder, "--web.enable-admin-api"))
        victoria = stack.enter_context(victoria_metrics_server(folder))
        num_samples = max(write_pages(url, pages) for url in (prometheus, victoria))
        with HistoryWriter(folder / "own") as writer:
            for block in sample_blocks(pages):
                writer.append(block)
            writer.flush()
            writer.compact()
        _request(prometheus, "POST", "/api/v1/admin/tsdb/snapshot")
        _request(victoria, "GET", "/internal/force_merge")
        histories: dict[str, MetricHistory] = {"own": history_at(folder / "own")}
        histories |= {"Prometheus": PrometheusHistory(prometheus), "VictoriaMetrics": PrometheusHistory(victoria)}
        span = TimeRange(begin_ms * 10**6, (begin_ms + _SCRAPES * _SCRAPE_MS) * 10**6, 60 * 10**9)
        for store, history in histories.items():
            for text, question in _QUESTIONS.items():
                seconds = []
                for _ in range(3):
                    began = time.perf_counter()
                    history.range(question, span)
                    seconds.append(time.perf_counter() - began)
                figures.setdefault(text, {})[store] = round(1e3 * min(seconds), 1)
        time.sleep(5.0)  # VictoriaMetrics merges in the background
        sizes = {
            "own": _bytes(folder / "own/raw"),
            "Prometheus": _bytes(folder / "prometheus/snapshots"),
            "VictoriaMetrics": sum(_bytes(folder / "victoria-metrics" / part) for part in ("data", "indexdb")),
        }
    print(f"{num_samples:,} samples of {options.nodes * _GPUS:,} GPUs; milliseconds an answer, the best of three")
    for text, by_store in figures.items():
        print(f"{text}: {', '.join(f'{store} {milliseconds}' for store, milliseconds in by_store.items())}")
    print("bytes a sample:", ", ".join(f"{store} {size / num_samples:.2f}" for store, size in sizes.items()))
    if options.out:
        options.out.write_text(json.dumps({"samples": num_samples, "milliseconds": figures, "bytes": sizes}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
