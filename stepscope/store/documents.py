"""Encoding and checked decoding of JSON documents: an analysis, its timelines, and a run's manifest.

`stepscope.analysis/1` is the JSON of `analyze --json` and of analysis.json. A timeline is stored as durations, not
start times, so that a segment takes about 8 bytes:

    {"schema": "stepscope.timeline/1", "headings": [names of categories; a segment's code is an index into this list],
     "ranks": [{"rank", "start_ns", "durations_ns": [...], "headings": [codes], "step_starts_ns", "step_indices"}]}
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import msgspec

from stepscope.core.documents.analysis import ANALYSIS_SCHEMA, AnalysedJob, Analysis
from stepscope.core.documents.run_directory import RUN_SCHEMA, RankTimeline, RunManifest
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, TimeCategory

TIMELINE_SCHEMA = "stepscope.timeline/1"

MAX_WHOLE_NUMBER = 2**63 - 1
"""Larger times and sizes do not fit into a signed integer of 64 bits."""

LARGEST_FIGURE = 1e40
"""Larger than any time, size or rate; squares of products of two such numbers are still finite."""

SHORTEST_STEP_MS, LONGEST_STEP_MS = 1e-6, 1e12
"""A nanosecond, and about 30 years."""

_PERHAPS_TOO_LARGE = (re.compile(rb"\d[eE]\+?\d\d"), re.compile(rb"[:,\[\s]-?\d{40}"))
"""Hints that a document may hold a figure that is too large; they may match a name, so the figures are then checked.
One pattern for both takes twice as long."""

_SURROGATE = re.compile("[\ud800-\udfff]")

_Document = TypeVar("_Document")


class _SchemaOnly(msgspec.Struct):
    schema: str


class _RankRow(msgspec.Struct):
    rank: int
    start_ns: int
    durations_ns: list[int]
    headings: list[int]
    step_starts_ns: list[int]
    step_indices: list[int]


class _TimelineDocument(msgspec.Struct):
    schema: str
    headings: list[str]
    ranks: list[_RankRow]


def decode_analysis(content: bytes, *, where: str = "analysis") -> Analysis:
    """Store: decode a stored analysis (`stepscope.analysis/1`); `where` is its origin, for errors.

    Raises:
        DataError: not JSON, another schema, a field is missing or wrong, a figure is absurdly large, or no rank has a
            step.
    """
    analysis = decode_document(content, kind=Analysis, schema=ANALYSIS_SCHEMA, where=where)
    check_job(analysis.job, where=where)
    is_untraced = not analysis.ranks and analysis.job_time is not None
    if not is_untraced and not any(rank.steps for rank in analysis.ranks):
        raise DataError("has no step of any rank", where=where, what_next="analyse the run again")
    if any(hint.search(content) for hint in _PERHAPS_TOO_LARGE):
        _check_figures(msgspec.to_builtins(analysis), where=where)
    return analysis


def check_job(job: AnalysedJob, *, where: str) -> None:
    """Store: check a decoded analysis: refuse a job with impossible sizes.

    Raises:
        DataError: a size is negative or beyond MAX_WHOLE_NUMBER.
    """
    sizes = [getattr(job.mesh, name) for name in job.mesh.__slots__]
    _check_range([job.world_size, job.num_steps, *sizes, *job.ranks, *job.missing_ranks], where=where)


def decode_manifest(content: bytes, *, where: str = "run.json") -> RunManifest:
    """Decode the manifest in run.json.

    Raises:
        DataError: not JSON, another schema, or a field is missing or wrong.
    """
    manifest = decode_document(content, kind=RunManifest, schema=RUN_SCHEMA, where=where)
    times = [time for attempt in manifest.attempts for time in (attempt.start_ns, attempt.end_ns)]
    _check_range([manifest.world_size, *manifest.mesh.values(), *times], where=where)
    step_ms = manifest.unprofiled_step_ms
    if step_ms is not None and not SHORTEST_STEP_MS <= step_ms <= LONGEST_STEP_MS:
        raise DataError(f"has an impossible step time of {step_ms:g} ms", where=where, what_next="make it again")
    return manifest


def encode_timelines(timelines: list[RankTimeline]) -> bytes:
    """Store: encode timelines for writing, as a `stepscope.timeline/1` document."""
    document = _TimelineDocument(
        schema=TIMELINE_SCHEMA,
        headings=[category.value for category in CATEGORY_ORDER],
        ranks=[_encode_rank(timeline) for timeline in timelines],
    )
    return msgspec.json.encode(document)


def decode_timelines(content: bytes, *, where: str = "timeline.json") -> list[RankTimeline]:
    """Store: decode the stored timelines in a `stepscope.timeline/1` document.

    Raises:
        DataError: not JSON, another schema, unknown categories, lists of different lengths, or times beyond 64 bits.
    """
    document = decode_document(content, kind=_TimelineDocument, schema=TIMELINE_SCHEMA, where=where)
    unknown = sorted(set(document.headings) - set(TimeCategory))
    if unknown:
        raise DataError(
            f"has categories that this version does not know: {', '.join(unknown)}",
            where=where,
            what_next="analyse the run again",
        )
    codes = [CATEGORY_CODE[TimeCategory(name)] for name in document.headings]
    return [_decode_rank(row, codes, where=where) for row in document.ranks]


def decode_document(content: bytes, *, kind: type[_Document], schema: str, where: str) -> _Document:
    """Store: decode a file's JSON into `kind` after checking that its `schema` is the one that this version reads.

    Raises:
        DataError: not JSON, another schema, or a field is missing or wrong.
    """
    try:
        found = msgspec.json.decode(content, type=_SchemaOnly).schema
        if found == schema:
            return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"is damaged or not a {schema} document ({error})", where=where, what_next="make it again"
        ) from error
    raise DataError(
        f"has schema {found!r}, this version reads {schema!r}", where=where, what_next="analyse the run again"
    )


def is_figure(value: Any) -> bool:
    """Store: whether a decoded value is a number to calculate with: finite, of plausible size, not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST_FIGURE


def encode_document(document: Any) -> bytes:
    """Store: encode a document (dataclass, dict or list) as JSON for writing, with its `schema` first.

    Text that JSON cannot represent, such as undecodable bytes of a file name, becomes U+FFFD.
    """
    document = msgspec.to_builtins(document)
    if isinstance(document, dict) and "schema" in document:
        document = {"schema": document.pop("schema"), **document}
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(document))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(inner) for name, inner in value.items()}
    return [_without_surrogates(inner) for inner in value] if isinstance(value, list) else value


def _encode_rank(timeline: RankTimeline) -> _RankRow:
    edges = [*timeline.start_ns, timeline.end_ns]
    return _RankRow(
        rank=timeline.rank,
        start_ns=edges[0],
        durations_ns=[end - start for start, end in pairwise(edges)],
        headings=timeline.categories,
        step_starts_ns=timeline.step_starts_ns,
        step_indices=timeline.step_indices,
    )


def _decode_rank(row: _RankRow, codes: list[int], *, where: str) -> RankTimeline:
    fits = len(row.durations_ns) == len(row.headings) and len(row.step_starts_ns) == len(row.step_indices)
    known = all(0 <= code < len(codes) for code in row.headings)
    if not fits or not known or min(row.durations_ns, default=0) < 0:
        raise DataError(f"the lists of rank {row.rank} do not match", where=where, what_next="analyse the run again")
    edges = list(accumulate(row.durations_ns, initial=row.start_ns))
    _check_range([row.rank, edges[0], edges[-1], *row.step_starts_ns, *row.step_indices], where=where)
    return RankTimeline(
        rank=row.rank,
        start_ns=edges[:-1],
        end_ns=edges[-1],
        categories=[codes[code] for code in row.headings],
        step_starts_ns=row.step_starts_ns,
        step_indices=row.step_indices,
    )


def _check_range(numbers: Iterable[int | None], *, where: str) -> None:
    wrong = next((number for number in numbers if number is not None and not 0 <= number <= MAX_WHOLE_NUMBER), None)
    if wrong is not None:
        raise DataError(
            f"has an impossible size or time of {wrong:.3g}"
            if abs(wrong) < 10**300
            else "has an impossible size or time of more than 300 digits",
            where=where,
            what_next="make it again",
        )


def _check_figures(value: Any, *, where: str) -> None:
    """Refuse a document with a number beyond LARGEST_FIGURE at any depth."""
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            _check_figures(part, where=where)
    elif isinstance(value, int | float) and not abs(value) <= LARGEST_FIGURE:
        raise DataError("has an impossible figure of more than forty digits", where=where, what_next="make it again")
