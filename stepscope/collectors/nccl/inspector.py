"""Measurements of NCCL's inspector plugin: its JSON lines (v4) and Prometheus pages (v5). Other keys are ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from stepscope.core.documents.nccl_facts import InspectorCall

_KINDS = ("coll", "p2p")
_SERIES = re.compile(r"nccl_(?P<p2p>p2p_)?bus_bandwidth_gbs\{(?P<labels>[^}]*)\} (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_inspector(lines: Iterable[str]) -> Iterator[InspectorCall | None]:
    """The call of each measurement line, None for each such line that cannot be read; other lines are skipped."""
    for line in lines:
        line = line.strip()
        if line.startswith("{"):
            yield from _calls_of_json(line)
        elif "bus_bandwidth_gbs{" in line and not line.startswith("#"):
            yield _call_of_series(line)


def _calls_of_json(line: str) -> Iterator[InspectorCall | None]:
    try:
        document = json.loads(line)
        header = document["header"]
        for kind in _KINDS:
            if f"{kind}_perf" in document:
                yield _call(header, document[f"{kind}_perf"], kind)
    except (ValueError, KeyError, TypeError, RecursionError):
        yield None


def _call(header: dict[str, Any], perf: dict[str, Any], kind: str) -> InspectorCall:
    num_bytes = int(perf[f"{kind}_msg_size_bytes"])
    return InspectorCall(
        str(header.get("comm_name") or header["id"]),
        int(header["rank"]),
        int(header["n_ranks"]),
        str(perf[kind]),
        int(perf[f"{kind}_sn"]),
        num_bytes,
        f"{num_bytes:,} B",
        float(perf[f"{kind}_exec_time_us"]),
        float(perf[f"{kind}_busbw_gbs"]),
    )


def _call_of_series(line: str) -> InspectorCall | None:
    match = _SERIES.match(line)
    if match is None:
        return None
    labels = dict(_LABEL.findall(match["labels"]))
    try:
        value = float(match["value"])
        num_ranks = int(labels["nranks"])
    except (ValueError, KeyError):
        return None
    kind = labels.get("p2p_operation" if match["p2p"] else "collective", "")
    return InspectorCall(
        labels.get("comm_name", ""), None, num_ranks, kind, None, None, labels.get("message_size", ""), 0.0, value
    )
