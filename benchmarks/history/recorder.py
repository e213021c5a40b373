"""CPU and memory of a recorder of many agents, and how long it misses none of them.

    python -m benchmarks.history.recorder [--count 1250] [--hanging 20] [--garbage 14] [--interval 15] [--minutes 5]

`stepscope history run` scrapes the agents of `benchmarks.agent.simulated_agents`, whose pages are a recorded one with
other UUIDs, jobs and values; some hang, drip or answer garbage. After its end the history is read: the longest time
between two scrapes of one target that the history has, values of the good ones, a gap with its reason of each bad one.
CPU seconds are the recorder's own and tell what it costs, whatever else runs; misses depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.agent.simulated_agents import Fleet, recorded_document, recorded_page, simulated_agents
from benchmarks.measurement import cpu_seconds, resident_bytes
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import GroupBy, HistoryEventKind, Question, TimeRange

_SECOND_NS = 10**9
_SERVES = re.compile(r":(\d+)/metrics serves")
_START_SECONDS = 60.0


def targets_file(fleet: Fleet, path: Path) -> None:
    """Write the fleet's addresses as Prometheus' file_sd_configs has them, with racks."""
    racks: dict[str, list[str]] = {}
    for index in range(fleet.count):
        racks.setdefault(fleet.rack(index), []).append(fleet.address(index))
    path.write_text(json.dumps([{"targets": found, "labels": {"rack": rack}} for rack, found in racks.items()]))


def _own_metrics(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("stepscope_history_"): float(value) for name, _, value in lines}


def _wait_for_port(log: Path) -> int:
    end = time.monotonic() + _START_SECONDS
    while (match := _SERVES.search(log.read_text())) is None:
        if time.monotonic() > end:
            raise RuntimeError(f"the recorder does not start: {log.read_text()[-500:]}")
        time.sleep(0.1)
    return int(match[1])


def _report(store: Path, fleet: Fleet, begin_ns: int, end_ns: int, interval: float) -> None:
    """What the history has of each target."""
    history = history_at(store)
    begin_ns -= begin_ns % _SECOND_NS
    question = Question("up", (GroupBy.NODE,))
    last: dict[str, int] = {}
    longest: dict[str, int] = {}
    ups: dict[str, list[float]] = {}
    for start in range(begin_ns, end_ns, 120 * _SECOND_NS):  # seconds of 1,250 targets are many values
        span = TimeRange(start, min(start + 120 * _SECOND_NS, end_ns), _SECOND_NS)
        answer = history.range(question, span)
        for labels, values in zip(answer.groups, answer.values, strict=True):
            instance = dict(labels)["instance"]
            known = np.flatnonzero(~np.isnan(values))
            for time_ns in answer.times_ns[known].tolist():
                longest[instance] = max(longest.get(instance, 0), time_ns - last.get(instance, time_ns))
                last[instance] = time_ns
            ups.setdefault(instance, []).extend(values[known].tolist())
    gaps = [event for event in history.events(begin_ns, end_ns) if event.kind is HistoryEventKind.GAP]
    silent = {dict(event.labels)["instance"] for event in gaps}
    good = [instance for instance in ups if instance not in silent]
    beyond = sum(span > 2 * interval * _SECOND_NS for span in longest.values())
    print(f"targets in the history: {len(ups)} of {fleet.count}; {len(good)} of them never without a page")
    print(f"gaps: {len(gaps)} of {len(silent)} targets: {dict(Counter(event.code for event in gaps))}")
    print(f"longest time between two scrapes of a target: {max(longest.values()) / _SECOND_NS:.0f} s (to the second); "
          f"{beyond} targets beyond two intervals")  # fmt: skip
    print(f"values of up of the good ones that are not 1: {sum(value != 1.0 for one in good for value in ups[one])}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1250)
    parser.add_argument("--hanging", type=int, default=20)
    parser.add_argument("--garbage", type=int, default=14)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args()
    fleet = Fleet(options.count, options.hanging, options.garbage)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document, page, targets, store = (folder / one for one in ("node.json", "page.txt", "targets.json", "history"))
        document.write_text(json.dumps(recorded_document()))
        page.write_text(recorded_page())
        targets_file(fleet, targets)
        command = [sys.executable, "-m", "stepscope", "history", "run", "--history", str(store)]
        command += ["--targets", str(targets), "--interval", str(options.interval), "--listen", "127.0.0.1:0"]
        log = folder / "recorder.log"
        with simulated_agents(fleet, document, page=page, is_old=True) as served, log.open("w") as stream:
            begin_ns = time.time_ns()
            with subprocess.Popen(command, stderr=stream) as recorder:
                port = _wait_for_port(log)
                time.sleep(3 * options.interval)  # all layouts are known, what it loads is loaded
                begin, cpu, of_agents = time.monotonic(), cpu_seconds(recorder.pid), cpu_seconds(served)
                before, rss = _own_metrics(port), [resident_bytes(recorder.pid)]
                while time.monotonic() - begin < 60.0 * options.minutes:
                    time.sleep(5.0)
                    rss.append(resident_bytes(recorder.pid))
                seconds = time.monotonic() - begin
                now, cpu = _own_metrics(port), cpu_seconds(recorder.pid) - cpu
                of_agents = cpu_seconds(served) - of_agents
                end_ns, ending = time.time_ns(), time.monotonic()
                recorder.send_signal(signal.SIGTERM)
                code = recorder.wait(60)
                ending = time.monotonic() - ending
        samples, scrapes = (now[one] - before[one] for one in ("samples_total", "scrapes_total"))
        print(f"{fleet.count} agents, {fleet.hanging} hang, {fleet.garbage} answer garbage; "
              f"every {options.interval:g} s for {seconds:.0f} s; "
              f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")  # fmt: skip
        print(f"recorder: {cpu / seconds:.1%} of one CPU ({1e3 * cpu / scrapes:.2f} ms a scrape), "
              f"{samples / seconds:,.0f} samples a second, {samples / cpu / 1e6:.2f} M a CPU-second; "
              f"simulated agents {of_agents / seconds:.1%}")  # fmt: skip
        per_minute = [max(rss[place : place + 12]) >> 20 for place in range(0, len(rss), 12)]
        print(f"memory: {rss[0] >> 20} MiB at first, {rss[-1] >> 20} at last; most in each minute {per_minute}")
        print(f"missed scrapes {now['missed_scrapes_total']:.0f}, lag at most {now['scrape_lag_seconds']:.1f} s, "
              f"failed writes {now['failed_flushes_total']:.0f}; "
              f"SIGTERM: exit code {code} after {ending:.1f} s")  # fmt: skip
        size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        print(f"history: {size / 1e6:.0f} MB in {sum(path.is_file() for path in store.rglob('*'))} files")
        print(f"lines of the log: {len(log.read_text().splitlines())}")
        _report(store, fleet, begin_ns, end_ns, options.interval)


if __name__ == "__main__":
    main()
