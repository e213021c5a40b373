"""Pages in a real browser: content, both themes, keyboard, no errors, no requests to other hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.core.text.verdict import verdict_text
from stepscope.core.vocabulary import TimeCategory
from stepscope.store.runs import RunStore, save_analysis
from tests.dashboard import example_run as example
from tests.dashboard.live_server import live_server

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.visit import PATIENCE_MS, Visit, checked_visit

pytestmark = pytest.mark.browser

RUN = "h100-2x2x2-pp-few"
ODD_NAME = "näme with space & %2F?#"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An analysed, a doubtful, a fresh and a damaged run."""
    root = tmp_path_factory.mktemp("runs")
    example.write_run(root, RUN)
    example.write_run(root, ODD_NAME, started_ns=example.ORIGIN_NS - 2 * 10**15)
    example.write_run(root, "doubtful", started_ns=example.ORIGIN_NS - 10**15)
    save_analysis(root / "doubtful", example.make_doubtful(example.make_timelines()))
    (root / "fresh").mkdir()
    example.write_manifest(root / "fresh", "fresh", started_ns=example.ORIGIN_NS - 10**14)
    (root / "broken").mkdir()
    (root / "broken" / "analysis.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    """The running app."""
    with live_server(root) as url:
        yield url


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    """A fresh page."""
    with checked_visit(browser, url) as visit:
        yield visit


def colours_on_canvas(page: Page) -> dict[str, int]:
    """Pixels of each colour on the timeline's rows, the most frequent 40."""
    counted: dict[str, int] = page.evaluate(
        """() => {
            const canvas = document.querySelector('#timeline canvas');
            const copy = document.createElement('canvas');
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const context = copy.getContext('2d', {willReadFrequently: true});
            context.drawImage(canvas, 0, 0);
            const {data} = context.getImageData(54, 40, canvas.width - 54, canvas.height - 40);
            const counts = {};
            for (let i = 0; i < data.length; i += 4) {
                const key = '#' + [data[i], data[i+1], data[i+2]].map(v => v.toString(16).padStart(2, '0')).join('');
                counts[key] = (counts[key] || 0) + 1;
            }
            return Object.fromEntries(Object.entries(counts).sort((a, b) => b[1] - a[1]).slice(0, 40));
        }"""
    )
    return counted


def open_timeline(visit: Visit, query: str = "") -> Page:
    """The run page with its timeline painted and in view."""
    page = visit.open(f"/runs/{RUN}{query}")
    page.wait_for_selector("#timeline-canvas[data-state=ready]")
    page.locator("#timeline").scroll_into_view_if_needed()
    page.wait_for_timeout(500)  # the page has come to rest: wheel turns belong to the canvas now
    return page


def test_the_list_shows_every_run_its_verdict_and_its_state(visit: Visit) -> None:
    page = visit.open("/")

    rows = page.locator("#runs-table tbody tr")
    expect(rows).to_have_count(5)
    expect(rows.filter(has_text=RUN)).to_contain_text("Pipeline bubble")
    expect(rows.filter(has_text=RUN)).to_contain_text("TP 2 × PP 2 × DP 2")
    expect(rows.filter(has_text="fresh")).to_contain_text("Not analysed")
    expect(rows.filter(has_text="broken")).to_contain_text("Unreadable")
    expect(page).to_have_title("Runs – stepscope")


def test_the_list_can_be_searched_and_sorted_and_the_url_keeps_both(visit: Visit) -> None:
    page = visit.open("/")
    names = page.locator("#runs-table tbody tr:visible th a")

    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(names).to_have_text(["broken", "doubtful", "fresh", RUN, ODD_NAME])
    page.get_by_label("Search the runs").fill("pipeline h100-2x2x2")
    expect(names).to_have_text([RUN])
    expect(page.locator("#runs-count")).to_have_text("1 of 5 runs")

    page.reload()
    page.wait_for_selector("#runs-table")
    expect(names).to_have_text([RUN])
    expect(page.get_by_label("Search the runs")).to_have_value("pipeline h100-2x2x2")


def test_a_run_opens_from_the_list_and_back_leads_to_it(visit: Visit) -> None:
    page = visit.open("/")
    page.get_by_role("link", name=RUN).click()

    expect(page.locator("#verdict-title")).to_have_text("Pipeline bubble")
    expect(page).to_have_url(f"{visit.url}/runs/{RUN}")
    expect(page).to_have_title(f"{RUN} – stepscope")
    page.go_back()
    expect(page.locator("#runs-table")).to_be_visible()


def test_the_run_page_says_what_the_analysis_says(visit: Visit, root: Path) -> None:
    analysis = RunStore(root).load_analysis(RUN)
    page = visit.open(f"/runs/{RUN}")

    verdict = page.locator("#verdict")
    text = verdict_text(analysis)
    for words in (text.evidence, text.confidence, *(number for number, _ in text.figures)):
        expect(verdict).to_contain_text(words)
    expect(verdict.locator(".ss-actions li")).to_have_text([f"{name} {words}" for name, words in text.remedies])
    expect(verdict.locator("tbody tr")).to_have_count(len(analysis.verdict.evidence))
    expect(page.locator("#root-causes li")).to_have_count(len(analysis.root_causes))
    expect(page.locator("#ledger .ss-stacked")).to_have_count(1 + len(analysis.ranks))
    expect(page.locator("#communication .ss-collectives tbody tr")).to_have_count(len(analysis.collectives))
    expect(page.locator("#quality")).to_contain_text("clean")
    order = page.locator("main section").evaluate_all("nodes => nodes.map(node => node.id)")
    assert order[:2] == ["quality", "verdict"]


def test_every_bar_adds_up_to_its_track(visit: Visit) -> None:
    page = visit.open(f"/runs/{RUN}")

    gaps = page.locator("#ledger .ss-stacked").evaluate_all(
        """bars => bars.map(bar => Math.abs(bar.getBoundingClientRect().width
            - [...bar.children].reduce((sum, box) => sum + box.getBoundingClientRect().width, 0)))"""
    )
    assert max(gaps) < 1


def test_a_doubtful_trace_is_named_before_the_verdict(visit: Visit) -> None:
    page = visit.open("/runs/doubtful")

    expect(page.locator("#quality")).to_contain_text("2 of 8 ranks have no trace: ranks 6–7")
    expect(page.locator("#quality")).to_contain_text("Profiling slowed the step by 31.0%")


def test_the_timeline_is_painted_with_the_headings_colours(visit: Visit) -> None:
    page = open_timeline(visit)

    colours = colours_on_canvas(page)
    expected = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--heading-bubble')")
    assert colours.get(expected, 0) > 10_000


def test_area_on_the_canvas_is_time(visit: Visit, root: Path) -> None:
    page = open_timeline(visit)
    colours = colours_on_canvas(page)
    bubble = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--heading-bubble')")
    width = page.evaluate("document.querySelector('#timeline canvas').width") - 54
    rows = example.NUM_RANKS * 24  # each rank's row is 24 px high

    assert abs(colours[bubble] / (width * rows) - RunStore(root).load_analysis(RUN).ledger[TimeCategory.BUBBLE]) < 0.01


def test_the_wheel_zooms_around_the_pointer_and_the_url_keeps_the_view(visit: Visit) -> None:
    page = open_timeline(visit)
    box = page.locator("#timeline canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    for _ in range(6):
        page.mouse.wheel(0, -120)
    page.wait_for_url("**t0=*")
    expect(page.locator(".ss-timeline-bar [role=status]")).not_to_contain_text("refining")
    status = page.locator(".ss-timeline-bar [role=status]").text_content()

    page.reload()
    page.wait_for_selector("#timeline-canvas[data-state=ready]")
    expect(page.locator(".ss-timeline-bar [role=status]")).to_have_text(status or "")
    page.locator("#timeline canvas").dblclick(position={"x": 300, "y": 60})
    expect(page.locator(".ss-timeline-bar [role=status]")).to_contain_text("0\u202fns to")
    expect(page).to_have_url(f"{visit.url}/runs/{RUN}")


def test_the_keyboard_zooms_and_pans(visit: Visit) -> None:
    page = open_timeline(visit)
    status = page.locator(".ss-timeline-bar [role=status]")
    whole = status.text_content() or ""
    page.locator("#timeline canvas").focus()

    seen = [whole]
    for key in ("+", "+", "ArrowRight", "-", "0"):
        page.keyboard.press(key)
        expect(status).not_to_have_text(seen[-1])
        seen.append(status.text_content() or "")

    assert len(set(seen[:5])) == 5
    assert seen[5] == whole


def test_hovering_tells_rank_step_and_heading(visit: Visit) -> None:
    page = open_timeline(visit)
    page.locator("#timeline canvas").hover(position={"x": 84, "y": 52 + 30 * 4})

    expect(page.locator(".ss-tip")).to_be_visible()
    expect(page.locator(".ss-tip")).to_contain_text("Rank 4, step 20")
    expect(page.locator(".ss-tip")).to_contain_text("%")


def test_the_theme_switch_changes_page_and_canvas_and_is_remembered(visit: Visit) -> None:
    page = open_timeline(visit)
    light = colours_on_canvas(page)
    page.locator("#theme-toggle").click()

    expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")
    deadline = time.monotonic() + PATIENCE_MS / 1e3
    while list(colours_on_canvas(page))[:2] == list(light)[:2]:
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")


def test_every_picture_has_a_label_and_its_numbers_as_a_table(visit: Visit) -> None:
    page = open_timeline(visit)

    unlabelled = page.evaluate("[...document.querySelectorAll('canvas, [role=img]')].filter(n => !n.ariaLabel).length")
    assert unlabelled == 0
    for name in ("ledger", "timeline"):
        page.locator(f"#{name}").get_by_role("tab", name="Table").click()
        expect(page.locator(f"#{name} table")).to_be_visible()
    expect(page.locator("#timeline tbody tr")).to_have_count(example.NUM_RANKS * example.NUM_STEPS)


def test_tab_leads_from_skip_link_to_header_to_content(visit: Visit) -> None:
    page = visit.open(f"/runs/{RUN}")
    places = []
    for _ in range(5):
        page.keyboard.press("Tab")
        places.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.ariaLabel"))

    assert places == ["Skip to the content", "stepscope", "Cluster", "Jobs", "Events"]
    assert page.evaluate("document.querySelectorAll('[tabindex]').length") > 0
    assert page.evaluate("[...document.querySelectorAll('[tabindex]')].every(node => node.tabIndex <= 0)")
    assert page.evaluate("[...document.querySelectorAll('button')].every(b => b.textContent.trim() || b.ariaLabel)")


def test_the_source_of_a_figure_shows_on_focus(visit: Visit) -> None:
    page = visit.open(f"/runs/{RUN}")
    page.locator("#root-causes .ss-info").focus()

    expect(page.get_by_role("tooltip")).to_contain_text("attributed to the rank that arrived last")


def test_kernels_can_be_grouped_by_keyboard(visit: Visit) -> None:
    kernels = visit.open(f"/runs/{RUN}").locator("#kernels")
    expect(kernels.locator("tbody tr:visible").first).to_contain_text("sm90_xmma_gemm")
    kernels.get_by_role("tab", name="Name", exact=True).focus()
    for tab, text in (("Operator", "aten::mm"), ("Module", "Linear_3"), ("Call", "aten::mm [[4096, 1024]]")):
        visit.page.keyboard.press("ArrowRight")
        expect(kernels.get_by_role("tab", name=tab, exact=True)).to_have_attribute("aria-selected", "true")
        expect(kernels.locator("tbody tr:visible").first).to_contain_text(text)
        expect(kernels.locator("tbody tr:visible").first).to_contain_text("19")
    kernels.get_by_role("tab", name="Copies", exact=True).click()
    expect(kernels.locator("tbody tr:visible")).to_have_count(2)


def test_a_run_without_analysis_shows_the_command(visit: Visit, root: Path) -> None:
    page = visit.open("/runs/fresh")

    expect(page.locator(".ss-command-text")).to_have_text(f"stepscope analyze {root / 'fresh'}")


def test_a_damaged_run_shows_what_is_wrong(visit: Visit, root: Path) -> None:
    page = visit.open("/runs/broken")

    expect(page.get_by_role("alert")).to_contain_text(f"{root / 'broken' / 'analysis.json'}: is damaged")


@pytest.mark.parametrize("path", ["/runs/nope", "/no/such/page"])
def test_an_unknown_path_says_so_with_status_404(visit: Visit, path: str) -> None:
    page = visit.page
    answer = page.goto(visit.url + path)

    assert answer is not None
    assert answer.status == 404
    expect(page.locator("h1")).to_have_text("Nothing here")
    assert [error for error in visit.errors if "404" not in error] == []
    visit.errors.clear()  # the browser itself reports the 404 on its console


def test_a_run_of_odd_characters_opens_from_the_list(visit: Visit) -> None:
    page = visit.open("/")
    page.get_by_role("link", name=ODD_NAME).click()

    expect(page.locator("#verdict-title")).to_have_text("Pipeline bubble")
    page.wait_for_selector("#timeline-canvas[data-state=ready]")
    page.reload()
    expect(page.locator("h1")).to_have_text(ODD_NAME)


def test_an_unexpected_error_is_a_page_with_its_id_and_a_way_to_try_again(
    visit: Visit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "list_runs", fail)
        page = visit.open("/")

        expect(page.get_by_role("alert")).to_contain_text("An unexpected error happened")
        error_id = page.get_by_role("alert").locator("code").text_content()
        assert error_id
        assert error_id in caplog.text
        assert "boom" in caplog.text
        assert page.locator(".mantine-Skeleton-root").count() == 0
    page.get_by_role("link", name="Try again").click()
    expect(page.locator("#runs-table")).to_be_visible()


@pytest.mark.parametrize(
    ("status", "content", "says"),
    [
        (502, "<html>Bad gateway</html>", "the server answers with status 502."),
        (200, "<html>Please log in</html>", "the server's answer is not JSON."),
        (422, '{"error": {"message": "timeline.json: is damaged", "what_next": ""}}', "timeline.json: is damaged"),
    ],
)
def test_a_time_line_that_fails_says_why_and_can_be_asked_for_again(
    visit: Visit, status: int, content: str, says: str
) -> None:
    visit.page.route("**/timeline?*", lambda route: route.fulfill(status=status, body=content))
    page = visit.open(f"/runs/{RUN}")

    bar = page.locator(".ss-timeline-bar [role=status]")
    expect(bar).to_contain_text(f"The time line cannot be shown: {says}")
    page.unroute("**/timeline?*")
    bar.get_by_role("button", name="Try again").click()
    page.wait_for_selector("#timeline-canvas[data-state=ready]")
    expect(bar).to_contain_text("0\u202fns to")
    assert [error for error in visit.errors if "Failed to load resource" not in error] == []
    visit.errors.clear()  # the browser itself reports the status on its console


def test_a_long_name_and_an_absurd_step_leave_the_other_columns_in_view(browser: Browser, tmp_path: Path) -> None:
    analysis = example.write_run(tmp_path, "n" * 240)
    absurd = replace(analysis.job, step_ms=1e300, gpu="G" * 300)
    save_analysis(tmp_path / ("n" * 240), replace(analysis, job=absurd))
    with live_server(tmp_path) as url:
        visit = Visit(browser.new_page(viewport={"width": 800, "height": 900}), url)
        page = visit.open("/")

        assert page.locator(".ss-scroll").evaluate("region => region.scrollWidth <= region.clientWidth")
        page = visit.open(f"/runs/{'n' * 240}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 800
        page.close()
    assert visit.errors == visit.off_host == []


def test_an_empty_directory_says_where_it_looked_and_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with live_server(tmp_path) as url:
        visit = Visit(browser.new_page(), url)
        page = visit.open("/")

        expect(page.locator("h1")).to_have_text("No runs here yet")
        expect(page.locator("#page")).to_contain_text(str(tmp_path))
        expect(page.locator(".ss-command-text").first).to_contain_text("stepscope demo")
        page.close()
    assert visit.errors == visit.off_host == []


@pytest.mark.parametrize("width", [420, 800])
@pytest.mark.parametrize("path", ["/", f"/runs/{RUN}", "/runs/fresh"])
def test_a_narrow_page_does_not_scroll_sideways(visit: Visit, path: str, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    page = visit.open(path)

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if path == "/" and width == 800:
        assert page.locator(".ss-scroll").evaluate("region => region.scrollWidth <= region.clientWidth")


def test_no_chart_library_is_loaded(visit: Visit) -> None:
    loaded: list[str] = []
    visit.page.on("request", lambda request: loaded.append(request.url))
    open_timeline(visit)

    assert not [url for url in loaded if "plotly" in url or "charts-shared" in url or "ag-grid" in url]
