"""Real servers that have a history, and a time that all of their samples are near."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.history.servers import RecordedPage, both_servers, write_pages


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, base_ms: int) -> Iterator[dict[str, str]]:
    """URLs by name. The tests are skipped where one is not installed."""
    folder: Path = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        try:
            urls = stack.enter_context(both_servers(folder))
        except FileNotFoundError as error:
            pytest.skip(str(error))
        names = ("stepscope_gpu_power_watts", "stepscope_gpu_energy_joules_total")
        for url in urls.values():
            write_pages(url, [RecordedPage((("cluster", "known"),), base_ms, {(name, ()): 1.0 for name in names})])
        yield urls


@pytest.fixture(scope="session")
def base_ms() -> int:
    """A whole minute 40 minutes ago, ms since the epoch: Prometheus takes samples of the latest hour only."""
    return int(time.time() - 2400) // 60 * 60_000
