"""A day of scrapes with an injected clock: memory and files of recorder and store stay flat.

    python -m benchmarks.history.rounds [--targets 10] [--rounds 5760] [--interval 15]

The recorder reads the pages of simulated agents, round after round, without a network and without waiting; the store
writes, compacts and reduces what it gets, by the same clock. Only the time for which it leaves replaced files to
readers is real, and here none. Each tenth target fails each seventh round, and one has a new series in every round.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from pathlib import Path

from benchmarks.agent.simulated_agents import SimulatedPage, recorded_page
from benchmarks.measurement import resident_bytes
from stepscope.core.errors import UnreachableError
from stepscope.store.history import maintenance
from stepscope.store.history.writer import HistoryWriter
from stepscope.workflow.history.recorder import Recorder
from stepscope.workflow.history.scrapes import Scrape, target_of
from stepscope.workflow.nodes.agent_client import agent_client

_BEGIN_NS = 1_780_000_000 * 10**9
_SHOWN_EVERY = 480


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5760)
    parser.add_argument("--interval", type=float, default=15.0)
    options = parser.parse_args()
    recorded = recorded_page()
    pages = [SimulatedPage(recorded, index) for index in range(options.targets)]
    targets = [target_of(agent_client(f"node{index}"), {"rack": f"r{index // 4}"}) for index in range(options.targets)]
    silent = UnreachableError("the agent has not answered within 10 s")
    silent.__cause__ = TimeoutError()
    logging.disable(logging.WARNING)  # a line a gap
    maintenance.GRACE_SECONDS = 0
    began, cpu = time.monotonic(), time.process_time()
    now_ns = _BEGIN_NS
    with tempfile.TemporaryDirectory() as folder, HistoryWriter(folder, clock=lambda: now_ns) as writer:
        recorder = Recorder(writer)
        print(" round  hours    MiB  files     MB  open events")
        for number in range(options.rounds):
            now_ns = _BEGIN_NS + int(number * options.interval * 1e9)
            for index, (target, page) in enumerate(zip(targets, pages, strict=True)):
                is_silent = index % 10 == 9 and number % 7 == 6
                content = page.content() + (b'churn{x="%d"} 1\n' % number if index == 0 else b"")
                answer = silent if is_silent else (200, content)
                recorder.take(Scrape(target, now_ns + index, 0.01, answer), number * options.interval)
            recorder.hand_over()
            while writer.maintain():
                pass
            if (number + 1) % _SHOWN_EVERY == 0:
                files = [path for path in Path(folder).rglob("*") if path.is_file()]
                size = sum(path.stat().st_size for path in files)
                open_events = sum(recorder.num_open().values())
                hours = (number + 1) * options.interval / 3600
                print(f"{number + 1:6} {hours:6.1f} {resident_bytes(os.getpid()) / 2**20:6.0f} {len(files):6} "
                      f"{size / 1e6:6.1f}  {open_events}", flush=True)  # fmt: skip
        samples = recorder.counts.samples
    cpu = time.process_time() - cpu
    print(f"{samples / 1e6:.1f} M samples in {time.monotonic() - began:.0f} s, {cpu:.0f} CPU-seconds "
          f"({samples / cpu / 1e6:.2f} M a CPU-second with pages, store and compaction)")  # fmt: skip


if __name__ == "__main__":
    main()
