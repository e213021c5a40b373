"""How is a real agent run beside a benchmark: started, scraped, weighed, frozen?

Frozen are the agent and then the processes that read GPUs: they end what they were asked, so that none stands still
within a call of the driver, and the agent finds their answers when it goes on.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

_START_SECONDS = 60.0
_ANSWER_SECONDS = 15.0
_LAST_CALL_SECONDS = 0.15
"""What a reading that was asked for may take to end: a round of a GPU is some milliseconds."""
_PR_SET_PDEATHSIG = 1
_WANTED = ("stepscope_gpu_", "stepscope_agent_")

Labels = tuple[tuple[str, str], ...]
Page = dict[str, dict[Labels, float]]
"""Values by metric and labels."""


class RealAgent:
    """`stepscope agent run`, which reads once a second."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._port = port
        self._frozen: list[int] = []

    def scrape(self) -> tuple[float, Page]:
        """When it was asked (seconds since the epoch), and what it says of GPUs and of itself.

        Raises:
            OSError, http.client.HTTPException: it does not answer.
        """
        began = time.time()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
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
        """The agent and the processes that read GPUs."""
        own = self._process.pid
        return [own, *(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == own)]

    def freeze(self) -> None:
        """Let it do nothing, until `thaw`."""
        family = self.family()
        self._frozen = family
        os.kill(family[0], signal.SIGSTOP)
        time.sleep(_LAST_CALL_SECONDS)
        for pid in family[1:]:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, the readers first: what one still had to answer is there when the agent looks at the time."""
        for pid in reversed(self._frozen):
            if pid == self._frozen[0]:
                time.sleep(_LAST_CALL_SECONDS)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen = []

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Frozen for a while."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def cpu_seconds(self) -> list[float]:
        """CPU time of each of its family, the agent's first."""
        return [_cpu_seconds(pid) for pid in self.family()]

    def memory_mib(self) -> dict[str, float]:
        """Of its family together; the proportional size is left out where the kernel does not tell it."""
        family = self.family()
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in family)
        told = {"rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / 1024**2}
        with suppress(OSError, StopIteration):
            told["pss_mib"] = sum(map(_proportional_kib, family)) / 1024
        return told


def _parent(pid: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _cpu_seconds(pid: int) -> float:
    """By clock_getcpuclockid(3), to the ns; in ticks of 10 ms where the kernel has no such clock."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _proportional_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def gpus_read(page: Page) -> dict[str, float]:
    """Age of each GPU's values on a page, seconds, by its UUID."""
    ages = page.get("stepscope_agent_sample_age_seconds", {})
    return {dict(labels)["uuid"]: age for labels, age in ages.items() if dict(labels)["collector"] == "nvml"}


def collections(page: Page) -> float:
    """How often the GPUs' source was asked, by a page."""
    counts = page.get("stepscope_agent_collections_total", {})
    return sum(count for labels, count in counts.items() if dict(labels)["collector"] == "nvml")


def troubles(page: Page) -> dict[str, float]:
    """What did not go well with the reading of the GPUs: processes that timed out or crashed, one started again."""
    counts = {name: sum(page.get(f"stepscope_agent_{name}", {}).values()) for name in ("probe_timeouts_total",
              "probe_crashes_total", "probes_left_behind", "probe_starts_total")}  # fmt: skip
    counts["probe_starts_total"] -= 1
    errors = page.get("stepscope_agent_collector_errors_total", {})
    counts["errors"] = sum(value for labels, value in errors.items() if dict(labels)["collector"] == "nvml")
    return {name: value for name, value in counts.items() if value}


@contextmanager
def real_agent(folder: Path) -> Iterator[RealAgent]:
    """An agent that has read its GPUs twice.

    Args:
        folder: for its log and state.

    Raises:
        RuntimeError: it does not start, or reads no GPU.
    """
    command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", "127.0.0.1:0", "--socket", ""]
    command += ["--state-dir", str(folder / "state"), "--interval", "1"]
    environment = {**os.environ, "STEPSCOPE_AGENT__KINETO__ENABLED": "false"}
    log = folder / "agent.log"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # one that is told to end cleans up
    with (
        log.open("w") as stream,
        subprocess.Popen(
            command, stdout=stream, stderr=stream, env=environment, start_new_session=True, preexec_fn=_end_with_parent
        ) as process,
    ):
        agent = None
        try:
            end = time.monotonic() + _START_SECONDS
            while "/metrics tells" not in log.read_text():
                _check(process, end, log)
                time.sleep(0.05)
            address = next(word for line in log.read_text().splitlines() for word in line.split() if "/metrics" in word)
            agent = RealAgent(process, int(address.removesuffix("/metrics").rpartition(":")[2]))
            while not (gpus_read(page := agent.scrape()[1]) and collections(page) >= 4):  # GPM takes two samples
                _check(process, end, log)
                time.sleep(0.2)
            yield agent
        finally:
            if agent is not None:
                agent.thaw()
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _end_with_parent() -> None:
    """A benchmark that is killed leaves no agent behind, and no frozen one: hence SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _check(process: subprocess.Popen[bytes], end: float, log: Path) -> None:
    if process.poll() is not None or time.monotonic() > end:
        raise RuntimeError(f"the agent reads no GPU: {log.read_text().strip()[-500:]}")
