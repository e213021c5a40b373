"""Stored documents with impossible figures are rejected, even if well-formed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.core.errors import DataError
from stepscope.store.documents import decode_analysis, decode_manifest, encode_document
from tests.dashboard import example_run as example

MANIFEST: dict[str, Any] = {
    "schema": "stepscope.run/1", "run": "x", "host": "n", "world_size": 1, "mesh": {}, "num_cpus": 8, "versions": {},
    "environment": {}, "attempts": [],
}  # fmt: skip


@pytest.mark.parametrize("value", [1e308, -1e41, float("1" + 39 * "9" + "00")])
def test_an_analysis_with_a_figure_of_more_than_forty_digits_is_refused(value: float) -> None:
    document = json.loads(encode_document(example.make_analysis(example.make_timelines())))
    document["ranks"][1]["steps"][0]["ms"] = value
    with pytest.raises(DataError, match="has an impossible figure of more than forty digits"):
        decode_analysis(json.dumps(document).encode())


def test_so_is_one_with_such_an_interval() -> None:
    document = json.loads(encode_document(example.make_analysis(example.make_timelines())))
    document["root_causes"][0]["interval"] = [0.5, 1e308]
    with pytest.raises(DataError, match="has an impossible figure of more than forty digits"):
        decode_analysis(json.dumps(document).encode())


def test_a_name_that_looks_like_such_a_figure_is_a_name() -> None:
    document = json.loads(encode_document(example.make_analysis(example.make_timelines())))
    document["roofline"]["kernels"][0]["name"] = "gemm_1e308_" + "9" * 200
    analysis = decode_analysis(json.dumps(document).encode())
    assert analysis.roofline.kernels[0].name.startswith("gemm_1e308_999")


@pytest.mark.parametrize("step_ms", [0.0, -1.0, 1e-300, 1e308])
def test_a_manifest_that_tells_an_impossible_step_is_refused(step_ms: float) -> None:
    assert decode_manifest(json.dumps(MANIFEST | {"unprofiled_step_ms": 81.1}).encode()).unprofiled_step_ms == 81.1
    with pytest.raises(DataError, match="impossible step time"):
        decode_manifest(json.dumps(MANIFEST | {"unprofiled_step_ms": step_ms}).encode())


def test_an_analysis_without_a_step_is_refused() -> None:
    document = json.loads(encode_document(example.make_analysis(example.make_timelines())))
    for rank in document["ranks"]:
        rank["steps"] = []
    with pytest.raises(DataError, match="has no step"):
        decode_analysis(json.dumps(document).encode())


def test_what_json_cannot_hold_becomes_a_replacement_character() -> None:
    document = {"path": "\udcff-rank0.json", "\ud800": ["a\udfff"], "schema": "s/1"}
    assert encode_document(document) == '{"schema":"s/1","path":"\ufffd-rank0.json","\ufffd":["a\ufffd"]}'.encode()
