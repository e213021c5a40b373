"""REST routes of the dashboard about the cluster, over the snapshots that its pages have."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from stepscope.core.errors import StepscopeError, UnreachableError, UsageError
from stepscope.dashboard.api import refusal
from stepscope.dashboard.cluster_map import gpu_document, map_document
from stepscope.dashboard.page_state import ColourBy
from stepscope.dashboard.queries import FleetQueries, Snapshot
from stepscope.store.documents import encode_document
from stepscope.workflow.history.cluster import ClusterState, map_metric

_WHAT_NEXT = "start the dashboard with --history"
_Metric = Annotated[str, Query(description="key of the metric; empty: the first that the history has")]


def make_cluster_api(fleet: FleetQueries | None) -> APIRouter:
    """Routes under /api/v1/cluster.

    Args:
        fleet: None: there is no history, and every answer says so.
    """
    router = APIRouter()

    @router.get("/api/v1/cluster/map", summary="All GPUs by one metric: places, and one byte a GPU")
    def cluster_map(
        metric: _Metric = "",
        colour: Annotated[ColourBy, Query(description="what a byte says")] = ColourBy.DEVIATION,
        layout: Annotated[str, Query(description="id of the places that the viewer has; they are left out")] = "",
        since: Annotated[int, Query(ge=0, description="number of the viewer's snapshot; 204 if there is no newer")] = 0,
    ) -> Response:
        try:
            snapshot = _snapshot(fleet, metric)
        except StepscopeError as error:
            return _refused(error)
        if snapshot.number == since:
            return Response(status_code=204, headers={"Cache-Control": "no-store"})
        return _json(encode_document(map_document(snapshot, colour, layout)))

    @router.get("/api/v1/cluster/gpus/{cell}", summary="One GPU of the map in words")
    def cluster_gpu(cell: int, metric: _Metric = "") -> Response:
        try:
            state = _snapshot(fleet, metric).value
            assert state is not None
            if not 0 <= cell < len(state.gpus):
                raise UsageError(f"no GPU {cell} on the map", what_next="ask for the map again")
        except StepscopeError as error:
            return _refused(error)
        return _json(encode_document(gpu_document(state, cell)))

    return router


def _snapshot(fleet: FleetQueries | None, metric: str) -> Snapshot[ClusterState]:
    """The latest snapshot, which has a value."""
    if fleet is None:
        raise UsageError("there is no metric history", what_next=_WHAT_NEXT)
    if metric:
        map_metric(metric)
    snapshot = fleet.cluster(metric or None)
    if snapshot is None:
        raise UnreachableError("the first answer of the metric history is not there yet", what_next="ask again")
    if snapshot.value is None:
        raise UnreachableError(snapshot.problem or "the metric history gives no answer", what_next="ask again")
    return snapshot


def _refused(error: StepscopeError) -> Response:
    return refusal(404 if isinstance(error, UsageError) else 503, error)


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json", headers={"Cache-Control": "no-store"})
