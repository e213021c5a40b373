"""dcgm-exporter collector: fetches one exporter's page and turns it into readings."""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.collectors.dcgm_exporter.fetching import Endpoint, FetchError, fetch_page
from stepscope.collectors.dcgm_exporter.merged_values import merge_page
from stepscope.collectors.dcgm_exporter.page_history import PageHistory
from stepscope.collectors.dcgm_exporter.readings import STALE_SECONDS, collection_of, values_by_gpu
from stepscope.collectors.dcgm_exporter.text_format import parse_page
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.readings import Collection, Finding, MissingReason
from stepscope.core.text.numbers import counted

TIMEOUT_SECONDS = 5.0
"""The exporter answers from memory; where DCGM hangs, it does not answer at all."""


class DcgmExporterCollector:
    """One exporter's page."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        expected_gpus: int | None = None,
        stale_seconds: float = STALE_SECONDS,
        fetcher: Callable[[Endpoint, float], str] | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Args:
            endpoint: where the page is.
            timeout_seconds: for one page.
            expected_gpus: how many the machine has, where that is known; another number is a finding.
            stale_seconds: how long a GPU's energy may stay unchanged; more where the exporter collects less often than
                every 30 s (`--collect-interval`): three of its intervals.
            fetcher: gets the page in that many seconds, or raises `FetchError`.
            wall_clock_ns: now, ns since the epoch.
        """
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._expected_gpus = expected_gpus
        self._fetcher = fetcher or (lambda where, seconds: fetch_page(where, timeout_seconds=seconds))
        self._wall_clock_ns = wall_clock_ns
        self._history = PageHistory(stale_seconds)

    def collect(self) -> Collection:
        """Fetch the page and read it. What is not known is missing, with its reason; nothing is raised.

        A page without samples is "not yet": dcgm-exporter serves it while it reloads its configuration.
        """
        try:
            text = self._fetcher(self._endpoint, self._timeout_seconds)
        except FetchError as error:
            return self._missing(error.reason, error.detail)
        time_ns = self._wall_clock_ns()
        page = parse_page(text)
        if not page.samples and not page.bad_lines:
            return self._missing(
                MissingReason.NOT_YET, "an empty page: the exporter is starting or loading its settings"
            )
        if not any(sample.name.lower().startswith("dcgm_") for sample in page.samples):
            return self._missing(MissingReason.UNREADABLE, "the page is not one of dcgm-exporter")
        content = merge_page(page)
        values = values_by_gpu(content)
        collection = collection_of(page, content, values, time_ns)
        collection = self._history.observe(collection, content, values, time_ns)
        expected, found = self._expected_gpus, len(content.gpus)
        if expected is None or expected == found:
            return collection
        message = f"{counted(found, 'GPU')} on the page of {self._endpoint}, expected {expected}"
        return Collection.joined((collection, Collection(findings=(Finding("gpu_count", message, (), time_ns),))))

    def _missing(self, reason: MissingReason, detail: str) -> Collection:
        return NoValue(reason, f"{self._endpoint}: {detail}").of_all()
