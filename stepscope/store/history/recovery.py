"""What a writer does before it begins: it finds what a killed writer, a bad disk or a stranger left."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import msgspec

from stepscope.core.errors import DataError
from stepscope.core.text.numbers import counted
from stepscope.store.history.catalog import (
    CATALOG,
    EVENTS,
    RAW,
    SEGMENTS,
    TIER_MS,
    Catalog,
    MetricEntry,
    StoredFile,
    encode_catalog,
    read_catalog,
)
from stepscope.store.history.maintenance import edges_of, segment_number, set_aside
from stepscope.store.history.parquet import FileFacts, decode_events, facts_of
from stepscope.store.history.places import Place
from stepscope.store.history.segments import crc32

_LOG = logging.getLogger(__name__)
_NUMBER = re.compile(r"\d{4}-\d{2}-\d{2}(?:T\d{2})?-(\d+)\.parquet")


def recovered_catalog(place: Place) -> Catalog:
    """The catalog of a place that is to be written, in agreement with its files.

    Unfinished files of a killed writer are removed, as what is in them is elsewhere too; other files that the catalog
    does not name, and those that are not as it says, are set aside. A damaged catalog is made again from the files.

    Raises:
        UnreachableError: the place does not answer.
        DataError: a newer stepscope wrote it.
        OSError: it cannot be written.
    """
    for folder in ("", *(path.rpartition("/")[0] for path in _folders(place))):
        place.remove_unfinished(folder)
    try:
        catalog = read_catalog(place)
    except DataError as error:
        if "has schema" in error.what:
            raise
        set_aside(place, CATALOG, error)
        return _made_again(place)
    found = dict(_parquet_files(place))
    if not catalog.change and found:
        _LOG.warning("%s is missing; it is made again", place.path(CATALOG))
        return _made_again(place)
    return _checked(place, catalog, found)


def _checked(place: Place, catalog: Catalog, found: dict[str, int]) -> Catalog:
    bad = [file for file in catalog.files if found.get(file.path) != file.bytes]
    for file in bad:
        size = found.get(file.path)
        error = DataError(
            f"has {size:,} bytes instead of {file.bytes:,}" if size else "is gone", where=place.path(file.path)
        )
        set_aside(place, file.path, error)
    known = {file.path for file in catalog.files} | {one.path for one in catalog.retired}
    unfinished = 0
    for path in found.keys() - known:
        if _is_unfinished(place, catalog, path):
            place.remove(path)
            unfinished += 1
    if unfinished:
        files = counted(unfinished, "file")
        _LOG.warning("%s: %s of a killed writer removed; the samples are in others", place.location, files)
    if bad:
        kept = tuple(file for file in catalog.files if file not in bad)
        catalog = msgspec.structs.replace(catalog, change=catalog.change + 1, files=kept)
        place.write(CATALOG, encode_catalog(catalog))
    return catalog


def _is_unfinished(place: Place, catalog: Catalog, path: str) -> bool:
    """Whether a writer was killed between this file and the catalog; any other file is set aside."""
    try:
        facts_of(place.read(path), place.path(path))
        newest = catalog.change if path.partition("/")[0] in list(TIER_MS)[1:] else catalog.compacted
        if _number(path) > newest:
            return True
        raise DataError("does not belong to the history", where=place.path(path))
    except DataError as error:
        set_aside(place, path, error)
        return False


def _made_again(place: Place) -> Catalog:
    """A catalog from what the files say about themselves."""
    facts: dict[str, FileFacts] = {}
    contents: dict[str, memoryview] = {}
    for path, _ in _parquet_files(place):
        try:
            content = place.read(path)
            facts[path], contents[path] = facts_of(content, place.path(path)), content
        except DataError as error:
            set_aside(place, path, error)
    segments = {segment_number(name) for name in place.sizes(SEGMENTS)}
    # The newest batch may not have been finished: then, and for some time after, its segments are there.
    newest = max((_number(path) for path in facts if path.startswith((RAW, EVENTS))), default=0)
    gone = {path for path in facts if path.startswith((RAW, EVENTS)) and _number(path) == newest in segments}
    for path in sorted(facts, key=lambda path: TIER_MS.get(facts[path].origin.tier, 0)):
        if gone.intersection(facts[path].origin.sources):
            gone.add(path)
    rest = [one for path, one in facts.items() if path not in gone]
    gone.update(path for one in rest for path in one.origin.replaces)
    for path in sorted(gone, key=lambda path: -TIER_MS.get(facts[path].origin.tier, 0) if path in facts else 0):
        place.remove(path)  # lower resolution first: it would be taken for all that is left of the others
    facts = {path: one for path, one in facts.items() if path not in gone}
    columns: list[tuple[str, ...]] = []
    files, metrics, tables = [], dict[str, MetricEntry](), dict[str, tuple[str, ...]]()
    for path, one in sorted(facts.items()):
        names = tuple(sorted(one.metrics))
        if names not in columns:
            columns.append(names)
        metrics |= one.metrics
        first, last = one.first_ms, one.last_ms
        if one.origin.tier == EVENTS:
            edges = edges_of(decode_events(contents[path], path))
            file = _stored(path, one, contents[path], edges, columns.index(names))
        else:
            tables[one.origin.table] = one.labels
            file = _stored(path, one, contents[path], (first, last), columns.index(names))
        files.append(file)
    numbers = [_number(path) for path in facts]
    catalog = Catalog(
        change=1 + max(numbers, default=0),
        compacted=max((_number(path) for path in facts if path.startswith((RAW, EVENTS))), default=0),
        newest_ms=max((file.last_ms or 0 for file in files if file.tier != EVENTS), default=0),
        metrics=metrics,
        tables=tables,
        columns=tuple(columns),
        files=tuple(files),
    )
    place.write(CATALOG, encode_catalog(catalog))
    return catalog


def _stored(
    path: str, facts: FileFacts, content: memoryview, edges: tuple[int, int | None], columns: int
) -> StoredFile:
    origin = facts.origin
    return StoredFile(
        path,
        origin.tier,
        origin.table,
        origin.span_ms,
        edges[0],
        edges[1],
        facts.rows,
        len(content),
        crc32(content),
        columns,
        origin.sources,
    )


def _number(path: str) -> int:
    match = _NUMBER.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else -1


def _folders(place: Place) -> Iterator[str]:
    """Folders of the history, each with a slash."""
    yield from (f"{SEGMENTS}/", f"{EVENTS}/")
    for tier in TIER_MS:
        yield from (f"{tier}/{table}/" for table in place.folders(tier))


def _parquet_files(place: Place) -> Iterator[tuple[str, int]]:
    for folder in _folders(place):
        if folder != f"{SEGMENTS}/":
            for name, size in place.sizes(folder.removesuffix("/")).items():
                yield folder + name, size
