"""Whether the same question has the same answer from our own store, Prometheus and VictoriaMetrics.

    python -m benchmarks.history.agreement [--minutes 60] [--seconds-a-scrape 1] [--live 40] [--out FILE]

An hour of two real agents (`live_hour`) is kept by our recorder, and written into both servers with the times of its
scrapes. Then the questions are put to all three: each value of each group must agree within 1%, and what one does not
know the others do not know either. Events must be the same within two steps of 15 s. Before that all three scrape one
agent by themselves for some seconds, every second. They see other samples then, so its GPUs stay as they are, counters
are left out, and in the end it is killed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.history.live_hour import Node, RawPage, record, running_job
from benchmarks.history.servers import RecordedPage, prometheus_server, victoria_metrics_server, write_pages
from stepscope.core.errors import UnreachableError
from stepscope.store.history.embedded import history_at
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import (
    GroupBy,
    HistoryEvent,
    HistoryEventKind,
    Labels,
    MetricHistory,
    Question,
    Statistic,
    TimeRange,
)
from stepscope.store.history.writer import HistoryWriter
from stepscope.workflow.history.recorder import Recorder
from stepscope.workflow.history.scrapes import Scrape, ScrapeTarget
from stepscope.workflow.nodes.agent_client import agent_client
from tests.collectors.fake_nvml.library import build_fake_nvml

LIMIT = 0.01
_NS_PER_MS = 10**6
_POWER, _ENERGY = "stepscope_gpu_power_watts", "stepscope_gpu_energy_joules_total"
_FLUSHED_EVERY = 10

QUESTIONS: Mapping[str, Question] = {
    "power of each GPU": Question(_POWER),
    "power of each node": Question(_POWER, (GroupBy.NODE,), Statistic.SUM),
    "utilization of each job": Question("stepscope_gpu_utilization_ratio", (GroupBy.JOB,)),
    "lowest SM clock of each user": Question("stepscope_gpu_sm_clock_hertz", (GroupBy.USER,), Statistic.MIN),
    "hottest GPU of each rack": Question("stepscope_gpu_temperature_celsius", (GroupBy.RACK,), Statistic.MAX),
    "GPUs that answer": Question("stepscope_gpu_up", (), Statistic.COUNT),
    "energy of each GPU": Question(_ENERGY),
    "energy of each job in two racks": Question(
        _ENERGY, (GroupBy.JOB, GroupBy.RACK), Statistic.SUM, {"rack": ("r1", "r2")}
    ),
    "GPU time of each user": Question("stepscope_job_gpu_seconds_total", (GroupBy.USER,), Statistic.SUM),
    "memory of one user's GPUs": Question(
        "stepscope_gpu_memory_used_bytes", (GroupBy.GPU, GroupBy.JOB), Statistic.MEAN, {"user": "ann"}
    ),
    "collections of each agent": Question("stepscope_agent_collections_total", (GroupBy.NODE,), Statistic.SUM),
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the answers of two histories are apart.

    Attributes:
        largest: largest relative difference of two values.
        num_values: that both know.
        num_known_once: values that only one of both knows.
    """

    largest: float
    num_values: int
    num_known_once: int

    @property
    def holds(self) -> bool:
        """Whether they are the same within the limit, and there is something to compare."""
        return self.largest <= LIMIT and self.num_known_once == 0 and self.num_values > 0


def agreement_of_ranges(one: MetricHistory, other: MetricHistory, question: Question, time: TimeRange) -> Agreement:
    """Compare the answers over time."""
    answers = [history.range(question, time) for history in (one, other)]
    rows = [dict(zip(answer.groups, answer.values, strict=True)) for answer in answers]
    return _agreement(rows, len(time.step_ends()))


def agreement_of_latest(one: MetricHistory, other: MetricHistory, question: Question, at_ns: int) -> Agreement:
    """Compare the newest values, and their times."""
    answers = [history.latest(question, at_ns=at_ns) for history in (one, other)]
    values = [dict(zip(answer.groups, answer.values[:, None], strict=True)) for answer in answers]
    times = [dict(zip(answer.groups, answer.times_ns[:, None] / 1e9, strict=True)) for answer in answers]
    found = _agreement(values, 1)
    is_same_time = all(abs(times[0][group] - times[1][group]) < 0.002 for group in times[0].keys() & times[1].keys())
    return found if is_same_time else Agreement(np.inf, found.num_values, found.num_known_once)


def _agreement(rows: Sequence[Mapping[Labels, Any]], num_steps: int) -> Agreement:
    nothing = np.full(num_steps, np.nan)
    largest, num_values, num_known_once = 0.0, 0, 0
    for group in rows[0].keys() | rows[1].keys():
        first, second = (np.asarray(one.get(group, nothing), np.float64) for one in rows)
        known = ~np.isnan(first) & ~np.isnan(second)
        num_values += int(known.sum())
        num_known_once += int((np.isnan(first) != np.isnan(second)).sum())
        scale = np.maximum(np.maximum(np.abs(first), np.abs(second)), 1e-12)
        largest = max(largest, float((np.abs(first - second) / scale)[known].max(initial=0.0)))
    return Agreement(largest, num_values, num_known_once)


def keep(folder: Path, pages: Iterable[RawPage]) -> MetricHistory:
    """The pages in a store of our own, by our recorder; half of them in Parquet files."""
    pages = sorted(pages, key=lambda page: page.time_ms)
    with HistoryWriter(folder) as writer:
        recorder = Recorder(writer)
        for number, page in enumerate(pages):
            client = agent_client(dict(page.target)["instance"])
            answer = (200, page.text) if page.text is not None else UnreachableError("refuses connections")
            scrape = Scrape(ScrapeTarget(client, page.target), page.time_ms * _NS_PER_MS, 0.01, answer)
            recorder.take(scrape, page.time_ms / 1e3)
            if number % _FLUSHED_EVERY == 0:
                recorder.hand_over()
            if number == len(pages) // 2:
                recorder.hand_over()
                writer.compact()
        recorder.hand_over()
    return history_at(folder)


def parsed(pages: Iterable[RawPage]) -> list[RecordedPage]:
    """The pages as remote write sends them."""
    found = []
    for page in pages:
        values = None
        if page.text is not None:
            families = text_string_to_metric_families(page.text.decode())
            samples = [sample for family in families for sample in family.samples]
            values = {(one.name, tuple(sorted(one.labels.items()))): float(one.value) for one in samples}
        found.append(RecordedPage(page.target, page.time_ms, values))
    return found


def compare(
    histories: Mapping[str, MetricHistory], begin_ms: int, minutes: float, step_seconds: Sequence[float] = (60.0, 300.0)
) -> dict[str, dict[str, Agreement]]:
    """How far each other history is from the first, by question."""
    (_, reference), *others = histories.items()
    end_ms = begin_ms + round(minutes * 60_000)
    found: dict[str, dict[str, Agreement]] = {}
    for text, question in QUESTIONS.items():
        for seconds in (seconds for seconds in step_seconds if seconds <= minutes * 60.0):
            time_range = TimeRange(begin_ms * _NS_PER_MS, end_ms * _NS_PER_MS, round(seconds * 1e9))
            found[f"{text}, {seconds:g} s"] = {
                name: agreement_of_ranges(reference, other, question, time_range) for name, other in others
            }
        for share in (0.3, 0.65, 1.0):
            at_ns = (begin_ms + round(share * (end_ms - begin_ms))) * _NS_PER_MS
            found[f"{text}, latest at {share:.0%}"] = {
                name: agreement_of_latest(reference, other, question, at_ns) for name, other in others
            }
    return found


def events_apart(one: Sequence[HistoryEvent], other: Sequence[HistoryEvent], tolerance_seconds: float) -> list[str]:
    """Events of one history that the other does not have at about the same time."""
    apart = []
    for event in one:
        near = [
            candidate
            for candidate in other
            if (candidate.kind, candidate.labels) == (event.kind, event.labels)
            and (candidate.code == event.code or event.kind == "gap")
            and abs(candidate.start_ns - event.start_ns) <= tolerance_seconds * 1e9
            and (candidate.end_ns is None) == (event.end_ns is None)
            and abs((candidate.end_ns or 0) - (event.end_ns or 0)) <= tolerance_seconds * 1e9
        ]
        if not near:
            apart.append(f"{event.kind} {event.code} {dict(event.labels)} from {event.start_ns} to {event.end_ns}")
    return apart


def live(folder: Path, seconds: float) -> tuple[dict[str, dict[str, Agreement]], dict[str, list[HistoryEvent]]]:
    """Agreement about an agent that all three scrape, and what each says of its end.

    Raises:
        RuntimeError: the agent does not start, or a server.
    """
    node = Node(folder / "node", build_fake_nvml(folder / "library"), "node", "r1")
    with ExitStack() as stack:
        stack.callback(node.kill)
        node.advance(1.0, {0: [stack.enter_context(running_job("101", "ann"))]})
        address = f"127.0.0.1:{node.start().port}"
        config = folder / "scrape.yml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs: [{job_name: stepscope, static_configs: "
            f"[{{targets: ['{address}'], labels: {{rack: r1}}}}]}}]\n"
        )
        targets = folder / "targets.json"
        targets.write_text(json.dumps([{"targets": [address], "labels": {"rack": "r1"}}]))
        urls = {
            "Prometheus": stack.enter_context(prometheus_server(folder, config=config.read_text())),
            "VictoriaMetrics": stack.enter_context(victoria_metrics_server(folder, f"-promscrape.config={config}")),
        }
        own = folder / "own"
        command = [sys.executable, "-m", "stepscope", "history", "run", "--interval", "1"]
        recorder = stack.enter_context(
            subprocess.Popen([*command, "--history", str(own), "--targets", str(targets)], stderr=subprocess.DEVNULL)
        )
        stack.callback(recorder.kill)
        time.sleep(8.0)  # all have begun, and jobs are known
        begin_ms = int(time.time() + 1) * 1000
        time.sleep(seconds)
        end_ms = int(time.time() - 1) * 1000
        node.kill()
        time.sleep(5.0)
        recorder.send_signal(signal.SIGTERM)
        recorder.wait(20)
        time.sleep(2.0)
        histories: dict[str, MetricHistory] = {"own": history_at(own)}
        histories |= {name: PrometheusHistory(url) for name, url in urls.items()}
        gauges = {text: question for text, question in QUESTIONS.items() if not question.metric.endswith("_total")}
        span = TimeRange(begin_ms * _NS_PER_MS, end_ms * _NS_PER_MS, 5 * 10**9)
        found = {
            f"live, {text}": {
                name: agreement_of_ranges(histories["own"], histories[name], question, span) for name in urls
            }
            for text, question in gauges.items()
        }
        now_ns = time.time_ns()
        gaps = {
            name: [one for one in history.events(begin_ms * _NS_PER_MS, now_ns) if one.kind is HistoryEventKind.GAP]
            for name, history in histories.items()
        }
        return found, gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the agents' hour (60)")
    parser.add_argument("--seconds-a-scrape", type=float, default=1.0, help="real time of each 15 s (1)")
    parser.add_argument("--live", type=float, default=40.0, help="seconds for which all scrape one agent (40)")
    parser.add_argument("--out", type=Path, help="file for the figures, JSON")
    options = parser.parse_args()
    begin_ms = (int(time.time()) // 60 - round(options.minutes) - 5) * 60_000
    with tempfile.TemporaryDirectory(prefix="stepscope-agreement-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "live").mkdir()
        of_live, gaps = live(folder / "live", options.live)
        print("live gaps:", {name: [(one.code, one.end_ns is None) for one in found] for name, found in gaps.items()})
        pages = record(
            folder,
            begin_ms,
            minutes=options.minutes,
            seconds_a_scrape=options.seconds_a_scrape,
            progress=lambda text: print(text, file=sys.stderr, flush=True),
        )
        urls = {
            "Prometheus": stack.enter_context(prometheus_server(folder)),
            "VictoriaMetrics": stack.enter_context(victoria_metrics_server(folder)),
        }
        recorded = parsed(pages)
        num_samples = max(write_pages(url, recorded) for url in urls.values())
        own = keep(folder / "history", pages)
        histories: dict[str, MetricHistory] = {"own": own}
        histories |= {name: PrometheusHistory(url) for name, url in urls.items()}
        found = of_live | compare(histories, begin_ms, options.minutes)
        span = begin_ms * _NS_PER_MS, (begin_ms + round(options.minutes * 60_000)) * _NS_PER_MS
        events = {name: history.events(*span) for name, history in histories.items()}
    print(f"{len(pages)} scrapes, {num_samples:,} samples")
    for text, by_name in found.items():
        figures = "; ".join(
            f"{name}: {one.largest:.3%} of {one.num_values} values, {one.num_known_once} known once"
            for name, one in by_name.items()
        )
        print(f"{'ok  ' if all(one.holds for one in by_name.values()) else 'FAIL'}  {text}: {figures}")
    apart = {
        name: [*events_apart(events["own"], events[name], 31.0), *events_apart(events[name], events["own"], 31.0)]
        for name in urls
    }
    print(f"events: {', '.join(f'{name} {len(all_events)}' for name, all_events in events.items())}")
    for name, lines in apart.items():
        for line in lines:
            print(f"FAIL  {name}: {line}")
    if options.out:
        document = {
            text: {name: [one.largest, one.num_values, one.num_known_once] for name, one in by_name.items()}
            for text, by_name in found.items()
        }
        options.out.write_text(json.dumps(document, indent=1))
    is_good = all(one.holds for by_name in found.values() for one in by_name.values()) and not any(apart.values())
    is_good &= all(len(found) == 1 and found[0].end_ns is None for found in gaps.values())
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
