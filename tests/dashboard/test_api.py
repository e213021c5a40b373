"""API for programs: the content of the files, and clear errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from stepscope.core.vocabulary import CATEGORY_ORDER
from stepscope.store.documents import decode_analysis
from stepscope.store.runs import RunStore
from tests.dashboard import example_run as example
from tests.dashboard.live_server import get, live_server

RUN = "h100-2x2x2-pp-few"
ODD_NAME = "näme with space & %2F?#"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an analysed, a fresh and a damaged run."""
    root = tmp_path_factory.mktemp("runs")
    example.write_run(root, RUN)
    (root / "fresh" / "traces").mkdir(parents=True)
    example.write_run(root, ODD_NAME)
    (root / "long").mkdir()
    (root / "long" / "traces").mkdir()
    (root / "long" / "timeline.json").write_bytes(
        b'{"schema": "stepscope.timeline/1", "headings": ["wait"], "ranks": [{"rank": 0, "start_ns": 5, '
        b'"durations_ns": [9223372036854775808], "headings": [0], "step_starts_ns": [], "step_indices": []}]}'
    )
    (root / "broken").mkdir()
    (root / "broken" / "analysis.json").write_text('{"schema": "stepscope.analysis/1", "job": {')
    return root


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    """The running app."""
    with live_server(root) as url:
        yield url


def test_runs_are_listed_with_their_verdicts(url: str, root: Path) -> None:
    document = get(f"{url}/api/v1/runs").json

    assert document["schema"] == "stepscope.runs/1"
    assert document["root"] == str(root)
    assert {run["id"]: (run["status"], run["cause"]) for run in document["runs"]} == {
        RUN: ("analysed", "pipeline_bubble"),
        ODD_NAME: ("analysed", "pipeline_bubble"),
        "long": ("not_analysed", None),
        "fresh": ("not_analysed", None),
        "broken": ("unreadable", None),
    }


def test_an_analysis_is_the_files_content(url: str, root: Path) -> None:
    answer = get(f"{url}/api/v1/runs/{RUN}")

    assert answer.json == json.loads((root / RUN / "analysis.json").read_bytes())
    assert decode_analysis(answer.body) == example.make_analysis(example.make_timelines())


def test_a_tile_adds_up_to_the_ledger(url: str) -> None:
    analysis = example.make_analysis(example.make_timelines())
    document = get(f"{url}/api/v1/runs/{RUN}/timeline?rank=5&width=300").json
    (tile,) = document["ranks"]

    assert tile["rank"] == 5
    painted = {int(code): sum(shares) / document["share_unit"] / 300 for code, shares in tile["shares"].items()}
    rank = analysis.ranks[5]
    scale = rank.window_ms * 1e6 / document["window_ns"]
    for code, heading in enumerate(CATEGORY_ORDER):
        assert document["headings"][code] == heading.value
        assert abs(painted.get(code, 0.0) - rank.ledger[heading] * scale) < 0.002


def test_zooming_in_gives_exact_slices_relative_to_the_origin(url: str) -> None:
    document = get(f"{url}/api/v1/runs/{RUN}/timeline?rank=0&start_ns=1000000&end_ns=4000000&width=1000").json
    line = example.make_timelines()[0]
    (tile,) = document["ranks"]

    assert document["origin_ns"] == str(line.start_ns[0])
    inside = [start - line.start_ns[0] for start in line.start_ns if 1_000_000 < start - line.start_ns[0] < 4_000_000]
    assert [start for start, _, _ in tile["slices"]] == [1_000_000, *inside]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/runs/nope", 404),
        ("/api/v1/runs/fresh", 404),
        ("/api/v1/runs/broken", 422),
        ("/api/v1/runs/..%2F..%2Fetc", 404),
        (f"/api/v1/runs/{RUN}/timeline?rank=99", 400),
        (f"/api/v1/runs/{RUN}/timeline?start_ns=5&end_ns=5", 400),
        (f"/api/v1/runs/{RUN}/timeline?width=0", 422),
        (f"/api/v1/runs/{RUN}/timeline?end_ns={10**30}", 422),
        (f"/api/v1/runs/{RUN}/timeline?start_ns={2**63 - 1}&end_ns={2**63 + 1}", 422),
        (f"/api/v1/runs/{RUN}/timeline?start_ns={2**62 - 1}&end_ns={2**62}", 400),
        (f"/api/v1/runs/{RUN}/timeline?rank={10**30}", 400),
        (f"/api/v1/runs/{'x' * 5000}", 404),
        ("/api/v1/runs/long", 404),
        ("/api/v1/runs/long/timeline", 422),
        ("/api/v1/runs/fresh/timeline", 404),
        ("/api/v2/anything", 404),
    ],
)
def test_refusals_are_json_with_an_honest_status(url: str, path: str, status: int) -> None:
    answer = get(url + path)

    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    assert set(answer.json["error"]) == {"message", "what_next"}


def test_an_end_beyond_the_window_is_its_end(url: str) -> None:
    document = get(f"{url}/api/v1/runs/{RUN}/timeline?rank=0&end_ns={2**62}").json

    assert document["end_ns"] == document["window_ns"]


def test_an_unexpected_error_is_json_with_an_id_that_the_log_knows(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(RunStore, "load_analysis", fail)
    with live_server(root) as url:
        answer = get(f"{url}/api/v1/runs/{RUN}")

    assert answer.status == 500
    (record,) = [record for record in caplog.records if record.name == "stepscope.dashboard.failures"]
    assert record.args is not None
    assert next(iter(record.args)) in answer.json["error"]["what_next"]
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), (f"/runs/{RUN}", 200), ("/runs/nope", 404), ("/healthz", 200), ("/readyz", 200), ("/metrics", 200),
     ("/api/v1/runs", 200), (f"/api/v1/runs/{RUN}", 200), ("/api/v1/runs/nope", 404), ("/assets/favicon.svg", 200)],
)  # fmt: skip
def test_head_is_answered_as_get_without_the_body(url: str, path: str, status: int) -> None:
    head, whole = get(url + path, method="HEAD"), get(url + path)

    assert (head.status, head.body) == (status, b"")
    assert whole.status == status
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.headers["content-length"] == whole.headers["content-length"]


def test_a_wrong_method_is_refused_in_the_same_shape(url: str) -> None:
    answer = get(f"{url}/api/v1/runs", method="DELETE")

    assert answer.status == 405
    assert answer.headers["allow"] == "GET"
    assert set(answer.json) == {"error"}


def test_the_described_refusal_is_the_one_that_is_sent(url: str) -> None:
    document = get(f"{url}/api/v1/openapi.json").json
    answers = document["paths"]["/api/v1/runs/{run_id}/timeline"]["get"]["responses"]

    assert set(answers) == {"200", "default"}
    assert answers["default"]["content"]["application/json"]["schema"]["required"] == ["error"]


def test_a_name_of_odd_characters_is_one_and_the_same_everywhere(url: str) -> None:
    (listed,) = [run["id"] for run in get(f"{url}/api/v1/runs").json["runs"] if run["id"].startswith("näme")]

    assert listed == ODD_NAME
    assert get(f"{url}/runs/{quote(ODD_NAME, safe='')}").status == 200
    assert get(f"{url}/runs/{quote('näme with space & /?#', safe='')}").status == 404
    assert get(f"{url}/api/v1/runs/{quote(ODD_NAME, safe='')}/timeline?rank=0").json["run"] == ODD_NAME


def test_probes_and_metrics_answer(url: str) -> None:
    metrics = get(f"{url}/metrics").body.decode()

    assert get(f"{url}/healthz").status == get(f"{url}/readyz").status == 200
    assert 'stepscope_dashboard_runs{status="analysed"} 2' in metrics
    assert "stepscope_dashboard_store_up 1" in metrics


def test_a_lost_directory_is_not_ready_but_healthy(tmp_path: Path) -> None:
    root = tmp_path / "gone"
    root.mkdir()
    with live_server(root) as url:
        root.rmdir()

        assert get(f"{url}/healthz").status == 200
        assert get(f"{url}/readyz").status == 503
        assert "stepscope_dashboard_store_up 0" in get(f"{url}/metrics").body.decode()


@pytest.mark.parametrize("path", ["/", f"/runs/{RUN}", "/api/v1/runs", "/nope", "/assets/favicon.svg"])
def test_every_answer_carries_the_security_headers(url: str, path: str) -> None:
    headers = get(url + path).headers

    policy = headers["content-security-policy"]
    assert "script-src 'self' 'sha256-" in policy
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("path", "status"), [("/", 200), (f"/runs/{RUN}", 200), ("/runs/fresh", 200), ("/runs/nope", 404), ("/x/y", 404)]
)
def test_pages_answer_with_an_honest_status(url: str, path: str, status: int) -> None:
    answer = get(url + path)

    assert answer.status == status
    assert answer.headers["content-type"].startswith("text/html")


def test_a_foreign_host_name_is_refused(url: str) -> None:
    assert get(f"{url}/api/v1/runs", Host="evil.example").status == 421
    assert get(f"{url}/api/v1/runs", Host="localhost:1234").status == 200


def test_nothing_dangerous_is_offered(url: str) -> None:
    assert get(f"{url}/docs").status == get(f"{url}/redoc").status == get(f"{url}/_mcp").status == 404
    assert get(f"{url}/api/v1/openapi.json").status == 200
