"""Real agent beside a benchmark: started, scraped, frozen.

The agent is frozen first, then its reader processes, which finish their request: none stops within a driver call, and
the agent finds their answers when it resumes.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measurement import children
from stepscope.core.process import signal_at_parent_death

_START_SECONDS = 60.0
_ANSWER_SECONDS = 15.0
_LAST_CALL_SECONDS = 0.15
"""What a reading that was asked for may take to end: a round of a GPU is some milliseconds."""
_ADDRESS = re.compile(r":(\d+)/metrics serves")
_WANTED = ("stepscope_gpu_", "stepscope_agent_")

Labels = tuple[tuple[str, str], ...]
Page = dict[str, dict[Labels, float]]
"""Values by metric and labels."""


class RealAgent:
    """Running `stepscope agent run` that answers requests.

    Attributes:
        pid: of its own process.
        port: of its HTTP server.
    """

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port
        self._frozen: list[int] = []

    def scrape(self) -> tuple[float, Page]:
        """Time of the scrape (seconds since the epoch), and the metrics of GPUs and agent.

        Raises:
            OSError, http.client.HTTPException: it does not answer.
        """
        began = time.time()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        asked_at = (began + time.time()) / 2
        kept = "\n".join(line for line in text.splitlines() if line.startswith(_WANTED)) + "\n"
        page: Page = {}
        for family in text_string_to_metric_families(kept):
            for sample in family.samples:
                page.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return asked_at, page

    def family(self) -> list[int]:
        """Process ids of the agent and its reader processes."""
        return [self.pid, *children(self.pid)]

    def freeze(self) -> None:
        """Stop the agent until `thaw`."""
        family = self.family()
        self._frozen = family
        os.kill(family[0], signal.SIGSTOP)
        time.sleep(_LAST_CALL_SECONDS)
        for pid in family[1:]:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the agent, readers first, so that pending answers have arrived when the agent checks the time."""
        for pid in reversed(self._frozen):
            if pid == self._frozen[0]:
                time.sleep(_LAST_CALL_SECONDS)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen = []

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Context in which the agent is frozen."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()


def gpus_read(page: Page) -> dict[str, float]:
    """Age of each GPU's values on a page, seconds, by its UUID."""
    ages = page.get("stepscope_agent_sample_age_seconds", {})
    return {dict(labels)["uuid"]: age for labels, age in ages.items() if dict(labels)["collector"] == "nvml"}


def _collections(page: Page) -> float:
    """Number of polls of the GPU source, from /metrics."""
    counts = page.get("stepscope_agent_collections_total", {})
    return sum(count for labels, count in counts.items() if dict(labels)["collector"] == "nvml")


def troubles(page: Page) -> dict[str, float]:
    """Failures of GPU reading: processes that timed out, crashed or were restarted."""
    counts = {name: sum(page.get(f"stepscope_agent_{name}", {}).values()) for name in ("probe_timeouts_total",
              "probe_crashes_total", "probes_left_behind", "probe_starts_total")}  # fmt: skip
    counts["probe_starts_total"] -= 1
    errors = page.get("stepscope_agent_collector_errors_total", {})
    counts["errors"] = sum(value for labels, value in errors.items() if dict(labels)["collector"] == "nvml")
    return {name: value for name, value in counts.items() if value}


@contextmanager
def started_agent(folder: Path, *options: str, environment: Mapping[str, str] = os.environ) -> Iterator[RealAgent]:
    """Start an agent and wait until it answers; without a training socket unless the options set one.

    Args:
        folder: for its log and state.
        options: more of them.
        environment: all of it.

    Raises:
        RuntimeError: it does not start.
    """
    command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", "127.0.0.1:0", "--socket", ""]
    command += ["--state-dir", str(folder / "state"), *options]
    log = folder / "agent.log"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clean up on SIGTERM
    with (
        log.open("w") as stream,
        subprocess.Popen(
            command, stdout=stream, stderr=stream, env=environment, start_new_session=True, preexec_fn=_end_with_parent
        ) as process,
    ):
        agent = None
        try:
            end = time.monotonic() + _START_SECONDS
            while (address := _ADDRESS.search(log.read_text())) is None:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the agent does not start: {log.read_text().strip()[-500:]}")
                time.sleep(0.05)
            agent = RealAgent(process.pid, int(address[1]))
            yield agent
        finally:
            if agent is not None:
                agent.thaw()
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


@contextmanager
def real_agent(folder: Path) -> Iterator[RealAgent]:
    """Agent that reads once per second, and has read its GPUs twice.

    Raises:
        RuntimeError: it does not start, or reads no GPU.
    """
    settings = {"STEPSCOPE_AGENT__KINETO__ENABLED": "false", "STEPSCOPE_AGENT__EXPORTER__METRICS": "full"}
    environment = {**os.environ, **settings}
    with started_agent(folder, "--interval", "1", environment=environment) as agent:
        end = time.monotonic() + _START_SECONDS
        while not (gpus_read(page := agent.scrape()[1]) and _collections(page) >= 4):  # GPM takes two samples
            if time.monotonic() > end:
                raise RuntimeError(f"the agent reads no GPU: {(folder / 'agent.log').read_text().strip()[-500:]}")
            time.sleep(0.2)
        yield agent


def _end_with_parent() -> None:
    """A benchmark that is killed leaves no agent behind, and no frozen one: hence SIGKILL."""
    signal_at_parent_death(signal.SIGKILL)
