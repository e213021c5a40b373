"""The map of all GPUs as a compact document: places once, then one byte a GPU."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from stepscope.core.text.numbers import UNKNOWN
from stepscope.dashboard.page_state import ColourBy
from stepscope.dashboard.queries import Snapshot
from stepscope.store.history.questions import HistoryEventKind
from stepscope.workflow.history.cluster import ClusterState, MapMetric

MAP_SCHEMA = "stepscope.cluster_map/1"
GPU_SCHEMA = "stepscope.cluster_gpu/1"
FULL = 200
"""Byte of the highest value; 0 is the lowest, and of deviations the half of it no deviation."""
NOT_COMPARED, NO_VALUE, NO_ANSWER = 253, 254, 255
"""Bytes of GPUs that have no job to be compared with, no value, or a node that does not answer."""
_MAX_MARKS = 500


@dataclass(frozen=True, slots=True)
class Places:
    """Where the GPUs are.

    Attributes:
        racks: name and number of nodes of each; an empty name: nodes without a rack.
        nodes: names.
        gpus: GPUs of each node.
    """

    racks: list[tuple[str, int]]
    nodes: list[str]
    gpus: list[int]


@dataclass(frozen=True, slots=True)
class MapDocument:
    """The map of all GPUs.

    Attributes:
        number: of the snapshot, for `since`.
        at_ns: time of the newest scrape, ns since the epoch, as text; None without one.
        layout: id of the places; they are left out for a viewer that has them.
        values: a byte a GPU, base64.
        marks: GPUs with an open health event, by place.
    """

    schema: str
    number: int
    at_ns: str | None
    is_stale: bool
    layout: str
    places: Places | None
    values: str
    marks: list[int]


@dataclass(frozen=True, slots=True)
class GpuDocument:
    """One GPU of the map, in words."""

    schema: str
    node: str
    rack: str
    gpu: str
    uuid: str
    job: str
    value: str
    why: list[str]


def map_document(snapshot: Snapshot[ClusterState], colour: ColourBy, known_layout: str = "") -> MapDocument:
    """The map of a snapshot that has a value.

    Args:
        known_layout: id of the places that the viewer has.
    """
    state = snapshot.value
    assert state is not None
    places = Places(
        [(rack, len(list(nodes))) for rack, nodes in groupby(node.rack for node in state.nodes)],
        [node.name for node in state.nodes],
        [node.num_gpus for node in state.nodes],
    )
    layout = f"{zlib.crc32(repr((places, state.gpus)).encode()):08x}"
    return MapDocument(
        MAP_SCHEMA,
        snapshot.number,
        None if state.at_ns is None else str(state.at_ns),
        state.is_stale,
        layout,
        None if layout == known_layout else places,
        base64.b64encode(map_bytes(state, colour).tobytes()).decode(),
        _marks(state),
    )


def map_bytes(state: ClusterState, colour: ColourBy) -> NDArray[np.uint8]:
    """A byte for each GPU."""
    answer = np.full(len(state.gpus), NO_VALUE, np.uint8)
    metric = state.metric
    if metric is not None:
        known = ~np.isnan(state.values)
        if colour is ColourBy.VALUE:
            low, high = value_range(state, metric)
            share = (state.values[known] - low) / (high - low)
            answer[known] = np.rint(np.clip(share, 0.0, 1.0) * FULL)
        else:
            answer[known] = NOT_COMPARED
            for cell, deviation in enumerate(state.deviations):
                if deviation is not None and known[cell]:
                    answer[cell] = round((1.0 + metric.score(deviation)) / 2.0 * FULL)
    is_down = np.repeat([not node.is_up for node in state.nodes], [node.num_gpus for node in state.nodes])
    answer[is_down.astype(np.bool_)] = NO_ANSWER
    return answer


def value_range(state: ClusterState, metric: MapMetric) -> tuple[float, float]:
    """Ends of the scale of values, in the metric's unit."""
    if metric.high is not None:
        return metric.low, metric.high
    known = state.values[~np.isnan(state.values)]
    return metric.low, max(float(known.max()), metric.low + 1.0) if len(known) else metric.low + 1.0


def _marks(state: ClusterState) -> list[int]:
    wanted = {
        (dict(event.labels).get("instance"), dict(event.labels).get("gpu"))
        for event in state.open_events
        if event.kind is HistoryEventKind.HEALTH
    }
    if not wanted:
        return []
    places = ((labels.get("instance"), labels.get("gpu")) for labels in map(dict, state.gpus))
    return [cell for cell, place in enumerate(places) if place in wanted][:_MAX_MARKS]


def gpu_document(state: ClusterState, cell: int) -> GpuDocument:
    """One GPU in words.

    Raises:
        IndexError: there is no such cell.
    """
    node, labels, job = state.node_of(cell), dict(state.gpus[cell]), state.jobs[cell]
    deviation, metric = state.deviations[cell], state.metric
    why = next((list(one.why) for one in state.abnormal if one.cell == cell), [])
    if not why and deviation is not None and metric is not None:
        why = [metric.deviation_words(deviation)]
    if not node.is_up:
        why = ["its node does not answer"]
    number = labels.get("gpu", "")
    instance = labels.get("gpu_instance", "")
    return GpuDocument(
        GPU_SCHEMA,
        node.name,
        node.rack,
        f"{number} instance {instance}" if instance else number,
        labels.get("uuid", ""),
        f"{job[0]} {job[1]}".strip() if job else "",
        UNKNOWN if metric is None or not node.is_up else f"{metric.title} {metric.words(float(state.values[cell]))}",
        why,
    )
