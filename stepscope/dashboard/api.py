"""REST API under /api/v1, health probes and the server's own metrics.

Time lines of the latest few runs are cached as arrays. Unexpected errors are logged under an id that the client gets.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepscope import __version__
from stepscope.core.documents.run_directory import TIMELINE_FILE
from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import CATEGORY_ORDER
from stepscope.dashboard.failures import log_failure
from stepscope.store.documents import encode_document
from stepscope.store.runs import NotAnalysedError, RunStatus, RunStore, RunSummary, UnknownRunError
from stepscope.workflow.panels.timeline import SHARE_UNIT, Tile, Track, make_tile, make_track

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
    """Times are ns after `origin_ns`, a string because it does not fit into a JavaScript number."""

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


def make_api(store: RunStore, more_metrics: Callable[[], str] = str) -> APIRouter:
    """REST routes of the dashboard over `store`. FastAPI runs the plain functions on worker threads.

    Args:
        more_metrics: further lines of /metrics.
    """
    described = {"description": "Refused", "content": {"application/json": {"schema": _REFUSAL_SCHEMA}}}
    router = APIRouter(responses={"default": described})
    tracks = _TrackCache(store)

    @router.get("/api/v1/runs", summary="The runs in the directory, with their verdicts")
    def runs() -> Response:
        return _response(lambda: encode_document(_RunsDocument(RUNS_SCHEMA, str(store.root), store.list_runs(), [])))

    @router.get("/api/v1/runs/{run_id}", summary="One run's analysis: the document of `stepscope analyze --json`")
    def run(run_id: str) -> Response:
        return _response(lambda: encode_document(store.load_analysis(run_id)))

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
        return _response(lambda: encode_document(_tile_document(tracks, run_id, rank, start_ns, end_ns, width)))

    @router.get("/api/{rest:path}", include_in_schema=False)
    def unknown(rest: str) -> Response:
        return refusal(404, UsageError(f"no such path /api/{rest}", what_next="see /api/v1/openapi.json"))

    _add_probes(router, store, more_metrics)
    return router


def _add_probes(router: APIRouter, store: RunStore, more_metrics: Callable[[], str]) -> None:
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
        return PlainTextResponse(_metrics_text(store) + more_metrics(), media_type="text/plain; version=0.0.4")


def _tile_document(
    tracks: _TrackCache, run_id: str, ranks: list[int] | None, start_ns: int, end_ns: int | None, width: int
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
        headings=[heading.value for heading in CATEGORY_ORDER],
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


def _response(make: Callable[[], bytes]) -> Response:
    """The document as JSON, or an error: 404 not found, 400 wrong request, 422 damaged file.

    An unexpected error is logged under an id, and answered with status 500 and that id.
    """
    try:
        content = make()
    except (UnknownRunError, NotAnalysedError) as error:
        return refusal(404, error)
    except UsageError as error:
        return refusal(400, error)
    except DataError as error:
        return refusal(422, error)
    except Exception as error:  # at the API's edge: a client always gets JSON
        what_next = (
            f"look for {log_failure(error, doing='answering the API')} in the log of the dashboard, then ask again"
        )
        return refusal(500, StepscopeError("something unexpected happened", what_next=what_next))
    return Response(content, media_type="application/json", headers={"Cache-Control": "no-cache"})


def refusal(status: int, error: StepscopeError) -> Response:
    """HTTP response of a request that the dashboard refuses."""
    content = encode_document({"error": {"message": str(error), "what_next": error.what_next}})
    return Response(content, status_code=status, media_type="application/json")


class HeadMiddleware:
    """Answers the dashboard's HEAD requests with the headers of GET: FastAPI's routes take only GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)


def refuse_in_one_shape(server: FastAPI) -> None:
    """Give FastAPI's own errors (wrong query, wrong method) the shape of the dashboard's."""
    server.add_exception_handler(RequestValidationError, _wrong_question)
    server.add_exception_handler(HTTPException, _wrong_method)


def _wrong_question(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"{entry['loc'][-1]}: {entry['msg'].lower()}" for entry in error.errors()]
    return refusal(422, UsageError("; ".join(problems), where=request.url.path, what_next="see /api/v1/openapi.json"))


def _wrong_method(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what_next = "see /api/v1/openapi.json"
    answer = refusal(error.status_code, UsageError(str(error.detail), where=request.url.path, what_next=what_next))
    answer.headers.update(error.headers or {})
    return answer


MAX_CACHED_RUNS = 4


@dataclass(frozen=True, slots=True)
class _RunTracks:
    """Time lines of one run; the window begins with the first rank and ends with the last."""

    origin_ns: int
    length_ns: int
    tracks: dict[int, Track]


class _TrackCache:
    """Cache of the time lines of the runs last requested; thread-safe."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[tuple[int, int], _RunTracks]] = OrderedDict()

    def load(self, run_id: str) -> _RunTracks:
        """The run's window.

        Raises:
            UnknownRunError: there is no such run.
            DataError: it is not analysed, its timeline.json is damaged, or it holds no time.
        """
        path = self._store.path_of(run_id) / TIMELINE_FILE
        with self._lock:  # one reader at a time: a page requests several tiles at once
            state = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else (0, 0)
            kept = self._kept.get(run_id)
            if kept is None or kept[0] != state:
                kept = (state, self._read(run_id))
                self._kept[run_id] = kept
                while len(self._kept) > MAX_CACHED_RUNS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(run_id)
            return kept[1]

    def _read(self, run_id: str) -> _RunTracks:
        tracks = {line.rank: make_track(line) for line in self._store.load_timeline(run_id) if line.start_ns}
        if not tracks:
            raise DataError("its time line is empty", where=run_id, what_next="analyze the run again")
        origin = min(int(track.edges_ns[0]) for track in tracks.values())
        end = max(int(track.edges_ns[-1]) for track in tracks.values())
        return _RunTracks(origin, max(end - origin, 1), tracks)
