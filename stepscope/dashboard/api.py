"""What do programs get from the dashboard? The REST API under /api/v1, health and the server's own metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse

from stepscope import __version__
from stepscope.core.counting import counted
from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.core.timeline import HEADING_ORDER
from stepscope.dashboard.failures import report
from stepscope.dashboard.tracks import TrackCache
from stepscope.store.documents import encode_document
from stepscope.store.runs import NotAnalysedError, RunStatus, RunStore, RunSummary, UnknownRunError, encode_analysis
from stepscope.workflow.timeline_tiles import SHARE_UNIT, Tile, make_tile

RUNS_SCHEMA = "stepscope.runs/1"
TILE_SCHEMA = "stepscope.timeline_tile/1"

MAX_COLUMNS = 8192
MAX_RANKS_A_TILE = 64
MAX_QUERY_NS = 2**62

_REFUSAL_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "what_next"],
            "properties": {"message": {"type": "string"}, "what_next": {"type": "string"}},
        }
    },
}


@dataclass(frozen=True, slots=True)
class _RunsDocument:
    schema: str
    root: str
    runs: list[RunSummary]
    warnings: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class _TileDocument:
    """Times are ns after `origin_ns`, which is a text because it does not fit into a JavaScript number."""

    schema: str
    run: str
    origin_ns: str
    window_ns: int
    start_ns: int
    end_ns: int
    width: int
    share_unit: int
    headings: list[str]
    ranks: list[Tile]
    warnings: list[dict[str, str]]


def make_api(store: RunStore) -> APIRouter:
    """The routes over `store`. Handlers are plain functions: FastAPI runs them on worker threads."""
    described = {"description": "Refused", "content": {"application/json": {"schema": _REFUSAL_SCHEMA}}}
    router = APIRouter(responses={"default": described})
    tracks = TrackCache(store)

    @router.get("/api/v1/runs", summary="The runs in the directory, with their verdicts")
    def runs() -> Response:
        return _answer(lambda: encode_document(_RunsDocument(RUNS_SCHEMA, str(store.root), store.list_runs(), [])))

    @router.get("/api/v1/runs/{run_id}", summary="One run's analysis: the document of `stepscope analyze --json`")
    def run(run_id: str) -> Response:
        return _answer(lambda: encode_analysis(store.load_analysis(run_id)))

    @router.get("/api/v1/runs/{run_id}/timeline", summary="The ranks' time lines at one zoom")
    def timeline(
        run_id: str,
        rank: Annotated[list[int] | None, Query(description="ranks, in this order; all when absent")] = None,
        start_ns: Annotated[int, Query(ge=0, le=MAX_QUERY_NS, description="ns after the window's start")] = 0,
        end_ns: Annotated[
            int | None,
            Query(gt=0, le=MAX_QUERY_NS, description="ns after the window's start; its end when absent or beyond"),
        ] = None,
        width: Annotated[int, Query(ge=1, le=MAX_COLUMNS, description="columns, one a pixel")] = 1000,
    ) -> Response:
        return _answer(lambda: encode_document(_tile_document(tracks, run_id, rank, start_ns, end_ns, width)))

    @router.get("/api/{rest:path}", include_in_schema=False)
    def unknown(rest: str) -> Response:
        return refusal(404, UsageError(f"no such path /api/{rest}", what_next="see /api/v1/openapi.json"))

    _add_probes(router, store)
    return router


def _add_probes(router: APIRouter, store: RunStore) -> None:
    @router.get("/healthz", summary="The process answers")
    def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @router.get("/readyz", summary="The directory of runs can be read")
    def readyz() -> PlainTextResponse:
        try:
            store.list_runs()
        except DataError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        return PlainTextResponse("ok\n")

    @router.get("/metrics", summary="The server's own figures, Prometheus text format")
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(_metrics_text(store), media_type="text/plain; version=0.0.4")


def _tile_document(
    tracks: TrackCache, run_id: str, ranks: list[int] | None, start_ns: int, end_ns: int | None, width: int
) -> _TileDocument:
    window = tracks.load(run_id)
    end = window.length_ns if end_ns is None else min(end_ns, window.length_ns)
    if end <= start_ns:
        raise UsageError(
            f"start_ns {start_ns} to end_ns {end_ns} holds no time of this run's {window.length_ns} ns",
            what_next="ask for a range inside the window",
        )
    wanted = ranks if ranks is not None else sorted(window.tracks)
    missing = [rank for rank in wanted if rank not in window.tracks]
    if missing or len(wanted) > MAX_RANKS_A_TILE:
        what = f"no rank {missing[0]} in this run" if missing else f"{counted(len(wanted), 'rank')} asked for at once"
        raise UsageError(what, what_next=f"name up to {MAX_RANKS_A_TILE} of its ranks with rank=")
    place: dict[str, Any] = {"origin_ns": window.origin_ns, "start_ns": start_ns, "end_ns": end, "width": width}
    return _TileDocument(
        schema=TILE_SCHEMA,
        run=run_id,
        origin_ns=str(window.origin_ns),
        window_ns=window.length_ns,
        start_ns=start_ns,
        end_ns=end,
        width=width,
        share_unit=SHARE_UNIT,
        headings=[heading.value for heading in HEADING_ORDER],
        ranks=[make_tile(window.tracks[rank], **place) for rank in wanted],
        warnings=[],
    )


def _metrics_text(store: RunStore) -> str:
    lines = [
        "# HELP stepscope_dashboard_info The running version.",
        "# TYPE stepscope_dashboard_info gauge",
        f'stepscope_dashboard_info{{version="{__version__}"}} 1',
        "# HELP stepscope_dashboard_store_up Whether the directory of runs can be read.",
        "# TYPE stepscope_dashboard_store_up gauge",
    ]
    try:
        runs = store.list_runs()
    except DataError:
        return "\n".join([*lines, "stepscope_dashboard_store_up 0", ""])
    lines += [
        "stepscope_dashboard_store_up 1",
        "# HELP stepscope_dashboard_runs Runs in the directory by status.",
        "# TYPE stepscope_dashboard_runs gauge",
    ]
    for status in RunStatus:
        number = sum(run.status is status for run in runs)
        lines.append(f'stepscope_dashboard_runs{{status="{status.value}"}} {number}')
    return "\n".join([*lines, ""])


def _answer(make: Callable[[], bytes]) -> Response:
    """The document as JSON, or the expected error: 404 what is not there, 400 a wrong question, 422 a damaged file.

    What nobody expected is logged under an id and answered 500 with that id.
    """
    try:
        content = make()
    except (UnknownRunError, NotAnalysedError) as error:
        return refusal(404, error)
    except UsageError as error:
        return refusal(400, error)
    except DataError as error:
        return refusal(422, error)
    except Exception as error:  # the edge of the API: a client gets JSON with an id, whatever happened
        what_next = f"look for {report(error, doing='answering the API')} in the log of the dashboard, then ask again"
        return refusal(500, StepscopeError("something unexpected happened", what_next=what_next))
    return Response(content, media_type="application/json", headers={"Cache-Control": "no-cache"})


def refusal(status: int, error: StepscopeError) -> Response:
    """The one shape in which a request is refused."""
    content = encode_document({"error": {"message": str(error), "what_next": error.what_next}})
    return Response(content, status_code=status, media_type="application/json")
