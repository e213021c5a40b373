"""Report in a real browser: opened from a file, self-contained, in both themes and at any width."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.store.runs import save_analysis
from stepscope.workflow.panels.report import report_of_run
from tests.dashboard import example_run as example
from tests.workflow.panels.test_report import hostile
from tests.workflow.written_traces import write_trace

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page


def test_a_run_that_is_analysed_is_not_analysed_again(tmp_path: Path) -> None:
    example.write_run(tmp_path, "run")
    written = report_of_run([str(tmp_path / "run")], tmp_path / "x.html")
    assert 'id="timeline"' in written.read_text()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["analysis.json", "run.json", "timeline.json"]


def test_traces_are_analysed_on_the_fly_with_their_time_lines(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / "job" / f"rank{rank}.json.gz", rank)
    text = report_of_run([str(tmp_path / "job")], tmp_path / "x.html").read_text()
    assert "<title>job – stepscope</title>" in text
    assert 'id="timeline"' in text


def test_a_saved_analysis_has_no_time_lines(tmp_path: Path) -> None:
    run = tmp_path / "run"
    example.write_run(tmp_path, "run")
    text = report_of_run([str(run / "analysis.json")], tmp_path / "x.html").read_text()
    assert 'id="ledger"' in text
    assert 'id="timeline"' not in text


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    example.write_run(tmp_path, "run")
    with pytest.raises(DataError, match="cannot be written"):
        report_of_run([str(tmp_path / "run")], tmp_path / "absent" / "x.html")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose every name is hostile."""
    root = tmp_path_factory.mktemp("report")
    analysis = example.write_run(root, "run")
    save_analysis(root / "run", hostile(analysis))
    return report_of_run([str(root / "run")], root / "x.html")


def open_page(browser: Browser, path: Path, *, scheme: str, width: int, said: list[str]) -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.goto(path.as_uri())
    return page


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420])
def test_it_opens_from_a_file_without_a_request_an_error_or_a_sideways_scroll(
    scheme: str, width: int, written: Path, browser: Browser
) -> None:
    said: list[str] = []
    page = open_page(browser, written, scheme=scheme, width=width, said=said)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth >= 200)")
    assert page.evaluate("document.querySelectorAll('.timeline img').length") == example.NUM_RANKS
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(26, 27, 30)" if scheme == "dark" else "rgb(246, 247, 249)")
    assert page.locator("#verdict h2").inner_text().startswith("Pipeline bubble")
    bars = page.locator("#ledger .ss-stacked").first
    assert bars.locator(".ss-box").count() > 3
    assert page.evaluate("document.querySelector('#ledger .ss-box').getBoundingClientRect().width") > 20
    assert said == []
    page.context.close()


@pytest.mark.browser
def test_it_prints(written: Path, browser: Browser) -> None:
    said: list[str] = []
    page = open_page(browser, written, scheme="dark", width=1280, said=said)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(28, 32, 36)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.context.close()
