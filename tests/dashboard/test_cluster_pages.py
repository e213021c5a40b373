"""Pages of the cluster in a real browser, over a history that the test writes: content, states, size, live updates."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page, Request, expect

from stepscope.dashboard.queries import FleetQueries
from stepscope.store.history.questions import MetricHistory
from stepscope.workflow.history.opening import open_history
from tests.dashboard import example_history as example
from tests.dashboard.live_server import get, live_server
from tests.dashboard.visit import PATIENCE_MS, Visit, checked_visit

pytestmark = pytest.mark.browser

NODES, DOWN = 12, (4,)
FAR = 10_000_000.0
"""Interval of scrapes for a history that must not get old during the tests, s."""


def fleet_of(history: Path, *, interval: float = FAR) -> FleetQueries:
    """Questions to a history in a folder."""
    return FleetQueries(partial(open_history, str(history)), location=str(history), interval=interval)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app over a small cluster."""
    root = tmp_path_factory.mktemp("cluster")
    (root / "runs").mkdir()
    history = example.write_history(root / "history", nodes=NODES, down=DOWN, end_ns=time.time_ns())
    with live_server(root / "runs", fleet_of(history)) as url:
        yield url


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    """A fresh page."""
    with checked_visit(browser, url) as visit:
        yield visit


def open_map(visit: Visit, query: str = "") -> Page:
    """The cluster page with its map painted."""
    page = visit.open(f"/cluster{query}")
    page.wait_for_selector("#gpu-map[data-state=ready]")
    return page


def test_the_cluster_page_has_figures_map_abnormal_gpus_and_events(visit: Visit) -> None:
    page = open_map(visit)

    figures = page.locator(".ss-kpi")
    texts = dict(zip(figures.locator("dt").all_text_contents(), figures.locator("dd").all_text_contents(), strict=True))
    assert texts["Nodes answering"] == "11 of 12"
    assert texts["GPUs"] == "96"
    assert texts["Allocated"] == "80 83.3%"
    assert texts["Open events"] == "2"
    expect(page.locator(".ss-banner")).to_contain_text("11 of 12 nodes answer. No data of gpu0004:9455.")
    rows = page.locator("#abnormal tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("gpu0006:9455 GPU 2")
    expect(rows.first).to_contain_text(example.XID_TEXT)
    expect(rows.last).to_contain_text("median of its job")
    expect(page.locator(".ss-event-list li")).to_have_count(2)
    expect(page).to_have_title("Cluster – stepscope")
    expect(page.locator("#navigation [aria-current=page]")).to_have_text("Cluster")


def test_without_a_path_the_cluster_is_shown(visit: Visit) -> None:
    expect(visit.open("/").locator("h1")).to_have_text("Cluster")


def test_the_map_is_read_by_keyboard_pointer_and_as_a_table(visit: Visit) -> None:
    page = open_map(visit)
    status = page.locator("#gpu-map-status")
    page.locator("#gpu-map canvas").focus()
    page.keyboard.press("Home")
    expect(status).to_contain_text("gpu0000:9455 GPU 0 in rack-001. job slurm 1000")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(status).to_contain_text("gpu0003:9455 GPU 5 in rack-001. job slurm 1000. SM activity 3")
    page.keyboard.press("End")
    expect(status).to_contain_text("gpu0011:9455 GPU 7 in rack-002. no job")

    page.locator("#abnormal").get_by_role("button", name="gpu0003:9455 GPU 5").click()
    expect(status).to_contain_text("gpu0003:9455 GPU 5")

    page.locator("#gpu-map details summary").click()
    cells = page.locator(".ss-map-cells tbody tr")
    expect(cells).to_have_count(NODES)
    expect(cells.nth(4)).to_contain_text("no answer")
    expect(cells.nth(3).locator("td").nth(6)).to_have_text("−100%")
    expect(cells.nth(11)).to_contain_text("no job")


def test_metric_and_colour_are_in_the_url(visit: Visit) -> None:
    page = open_map(visit)
    page.get_by_role("link", name="Power").click()
    expect(page.locator("#map-title")).to_contain_text("power")
    page.get_by_role("link", name="Value").click()

    expect(page.locator("#map-title")).to_have_text("What is the power of every GPU?")
    expect(page).to_have_url(f"{visit.url}/cluster?metric=power&colour=value")
    page.reload()
    expect(page.locator("#map-title")).to_have_text("What is the power of every GPU?")
    page.go_back()
    expect(page.locator("#map-title")).to_have_text("Which GPUs differ in power from the rest of their job?")


def test_a_job_opens_from_an_abnormal_gpu(visit: Visit) -> None:
    page = open_map(visit)
    page.locator("#abnormal").get_by_role("link", name="slurm 1000").click()

    rows = page.locator("#jobs-table tbody tr:visible")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("slurm 1000")
    expect(rows).to_contain_text("user0")
    expect(rows).to_contain_text("points")
    expect(page.locator(".ss-listing-count")).to_have_text("1 of 3 jobs")


def test_jobs_are_sorted_and_searched_and_the_url_keeps_both(visit: Visit) -> None:
    page = visit.open("/jobs?last=15min")
    names = page.locator("#jobs-table tbody tr:visible th")
    expect(names).to_have_count(3)
    page.get_by_role("button", name="GPUs", exact=True).click()
    page.get_by_role("button", name="GPUs", exact=True).click()
    expect(names).to_have_text(["slurm 1010", "slurm 1000", "slurm 1005"])
    page.get_by_label("Search the jobs").fill("user5")
    expect(names).to_have_text(["slurm 1005"])
    page.reload()
    expect(names).to_have_text(["slurm 1005"])
    assert "last=15min" in page.url


def test_events_of_a_time_range(visit: Visit) -> None:
    page = visit.open("/events?last=1h")

    rows = page.locator("#events-table tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="xid_79")).to_contain_text("gpu0006:9455 GPU 2")
    expect(rows.filter(has_text="timed_out")).to_contain_text("open for")
    expect(page.locator(".ss-choice[aria-current]")).to_have_text("1 hour")


def test_each_panel_has_its_command_and_its_call(visit: Visit) -> None:
    for path, count in (("/cluster", 3), ("/jobs", 1), ("/events", 1)):
        page = visit.open(path)
        expect(page.locator(".ss-ask-lines")).to_have_count(count)
        for lines in page.locator(".ss-ask-lines").all():
            commands = lines.locator(".ss-command-text").all_text_contents()
            assert [command.split(" ")[0].split("(")[0] for command in commands] == ["stepscope", "stepscope.history"]


@pytest.mark.parametrize("path", ["/cluster", "/jobs", "/events"])
@pytest.mark.parametrize("width", [420, 800])
def test_a_narrow_page_does_not_scroll_sideways(visit: Visit, path: str, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    page = visit.open(path)

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('main').length") == 1


def test_no_chart_library_is_loaded(visit: Visit) -> None:
    loaded: list[str] = []
    visit.page.on("request", lambda request: loaded.append(request.url))
    open_map(visit)

    assert not [url for url in loaded if "plotly" in url or "ag-grid" in url]


def test_a_live_page_shows_what_is_written_and_keeps_the_map(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    history = example.write_history(tmp_path / "history", nodes=4, end_ns=time.time_ns() - 60 * 10**9)
    with live_server(tmp_path / "runs", fleet_of(history)) as url:
        visit = Visit(browser.new_page(), url)
        page = open_map(visit)
        expect(page.locator(".ss-kpi").first).to_contain_text("4 of 4")
        page.evaluate("document.querySelector('#gpu-map canvas').dataset.same = 'yes'")
        page.locator("#map-ask summary").click()
        page.locator("#gpu-map canvas").focus()
        example.write_history(tmp_path / "history", nodes=6, down=(5,), end_ns=time.time_ns(), minutes=1)

        expect(page.locator(".ss-kpi").first).to_contain_text("5 of 6")
        assert page.evaluate("document.querySelector('#gpu-map canvas').dataset.same") == "yes"
        assert page.evaluate("document.activeElement.dataset.same") == "yes"
        expect(page.locator("#map-ask .ss-command-text").first).to_be_visible()
        page.close()
    assert visit.errors == visit.off_host == []


# states


def test_without_a_history_every_page_says_how_to_get_one(browser: Browser, tmp_path: Path) -> None:
    with live_server(tmp_path) as url:
        visit = Visit(browser.new_page(), url)
        for path in ("/cluster", "/jobs", "/events"):
            page = visit.open(path)
            expect(page.locator("h1")).to_have_text("No metric history")
            expect(page.locator(".ss-command-text")).to_have_text(
                "stepscope dashboard --history DIR --agent http://NODE:9455"
            )
        page.close()
        assert get(f"{url}/cluster").status == 200
        assert get(f"{url}/cluster/x").status == 404
        assert get(f"{url}/api/v1/cluster/map").status == 404
    assert visit.errors == visit.off_host == []


def test_a_history_that_cannot_be_read_is_an_error_and_shows_itself_once_it_can(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    with live_server(tmp_path / "runs", fleet_of(tmp_path / "history")) as url:
        visit = Visit(browser.new_page(), url)
        page = visit.open("/cluster")
        expect(page.get_by_role("alert")).to_contain_text("The metric history cannot be read.")
        expect(page.get_by_role("alert")).to_contain_text(str(tmp_path / "history"))
        assert get(f"{url}/api/v1/cluster/map").status == 503

        example.write_history(tmp_path / "history", nodes=2, end_ns=time.time_ns())
        expect(page.locator(".ss-kpi").first).to_contain_text("2 of 2")
        page.close()
    assert visit.errors == visit.off_host == []


def test_a_history_without_scrapes_is_empty_with_one_action(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    history = example.write_history(tmp_path / "history", nodes=2, end_ns=time.time_ns() - 3 * 86400 * 10**9)
    with live_server(tmp_path / "runs", fleet_of(history)) as url:
        visit = Visit(browser.new_page(), url)
        page = visit.open("/cluster")
        expect(page.locator("h1")).to_have_text("No agent has answered yet")
        expect(page.locator(".ss-command-text")).to_contain_text("stepscope history run --history")
        page.close()
    assert visit.errors == visit.off_host == []


def test_old_data_are_called_old(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    history = example.write_history(tmp_path / "history", nodes=2, end_ns=time.time_ns() - 600 * 10**9)
    with live_server(tmp_path / "runs", fleet_of(history, interval=15.0)) as url:
        visit = Visit(browser.new_page(), url)
        page = open_map(visit)
        expect(page.get_by_role("alert")).to_contain_text("These data are 10 min old.")
        expect(page.locator("#gpu-map canvas.ss-map-stale")).to_be_visible()
        page.close()
    assert visit.errors == visit.off_host == []


def test_a_slow_first_answer_is_announced(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    history = example.write_history(tmp_path / "history", nodes=2, end_ns=time.time_ns())
    release = threading.Event()

    def open_late() -> MetricHistory:
        release.wait(60)
        return open_history(str(history))

    with live_server(tmp_path / "runs", FleetQueries(open_late, location="h", interval=FAR)) as url:
        visit = Visit(browser.new_page(), url)
        page = visit.open("/cluster")
        expect(page.locator("#page [role=status]")).to_contain_text("Reading the metric history")
        release.set()
        page.wait_for_selector("#gpu-map[data-state=ready]")
        page.close()
    assert visit.errors == visit.off_host == []


# ten thousand GPUs


def test_ten_thousand_gpus_take_little(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    history = example.write_history(
        tmp_path / "history", nodes=1250, down=(4, 77), end_ns=time.time_ns(), minutes=3, seed=1
    )
    with live_server(tmp_path / "runs", fleet_of(history)) as url:
        visit = Visit(browser.new_page(), url)
        finished: list[Request] = []
        visit.page.on("requestfinished", lambda request: finished.append(request))
        page = open_map(visit)
        expect(page.locator(".ss-kpi").first).to_contain_text("1,248 of 1,250")
        data = [one for one in finished if "/api/" in one.url or "/_dash-update-component" in one.url]
        first = sum(one.sizes()["responseBodySize"] for one in data)
        assert any("/api/v1/cluster/map" in one.url for one in data)
        assert first <= 100_000

        layout = page.evaluate(
            "fetch('/api/v1/cluster/map').then(answer => answer.json()).then(map => [map.layout, map.number])"
        )
        whole = get(f"{url}/api/v1/cluster/map")
        assert len(whole.body) <= 100_000
        update = get(f"{url}/api/v1/cluster/map?layout={layout[0]}")
        assert update.json["places"] is None
        with page.expect_event(
            "requestfinished", lambda one: "/_dash-update-component" in one.url, timeout=PATIENCE_MS
        ) as refreshed:
            pass
        live = refreshed.value.sizes()["responseBodySize"]
        assert len(update.body) + live <= 20_000
        assert get(f"{url}/api/v1/cluster/map?since={whole.json['number']}").status in (200, 204)
        gpu = get(f"{url}/api/v1/cluster/gpus/29").json
        assert (gpu["node"], gpu["gpu"], gpu["rack"], gpu["job"]) == ("gpu0003:9455", "5", "rack-001", "slurm 1000")
        assert get(f"{url}/api/v1/cluster/gpus/10000").status == 404
        page.close()
    assert visit.errors == visit.off_host == []
