"""Fixtures of all tests: the recorded traces, the browser, and the profile of the property tests."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_SHARED_TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "traces"

# a busy machine is no fault of the code: speed is measured by benchmarks/; a gate asks everybody the same questions
# no check by the clock: on a busy machine a draw takes long without being at fault; a failure prints how to repeat it
settings.register_profile(
    "stepscope",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("stepscope")


@pytest.fixture(scope="session", autouse=True)
def _agents_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Agents that tests start know nothing of this machine's: neither its socket nor its state."""
    told = {"TRAINING__SOCKET": "", "STATE__DIRECTORY": str(tmp_path_factory.mktemp("agent"))}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(f"STEPSCOPE_AGENT__{name}", value)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_views_are_kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests of the analysis read their traces; those of the views turn them on, in a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_VIEWS", "off")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_signal_handler_is_left() -> Iterator[None]:
    """A handler that a test leaves behind reaches every process forked by later tests."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder of the recorded traces that lie beside the checkout."""
    if not _SHARED_TRACES.is_dir():
        pytest.skip("the recorded traces (../shared/traces) are not here")
    return _SHARED_TRACES


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, driven by playwright; tests without it need neither."""
    from playwright.sync_api import expect, sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]
        )
        expect.set_options(timeout=30_000)  # a busy machine's browser is no fault of the page
        yield browser
        browser.close()
