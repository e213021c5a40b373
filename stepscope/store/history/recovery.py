"""What a writer does before it begins: it finds what a killed writer, a bad disk or a stranger left."""

from __future__ import annotations

import logging
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
    Retired,
    encode_catalog,
    file_number,
    merge_number,
    read_catalog,
    segment_number,
)
from stepscope.store.history.event_records import edges_of
from stepscope.store.history.parquet import FileFacts, decode_events, facts_of
from stepscope.store.history.places import Place
from stepscope.store.history.plans import remade_with
from stepscope.store.history.written_files import set_aside, stored_file

_LOG = logging.getLogger(__name__)


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
        again = remade_with(catalog.files, bad)
        kept = tuple(file for file in catalog.files if file not in bad and file not in again)
        retired = (*catalog.retired, *(Retired(file.path, 0) for file in again))
        catalog = msgspec.structs.replace(catalog, change=catalog.change + 1, files=kept, retired=retired)
        place.write(CATALOG, encode_catalog(catalog))
    return catalog


def _is_unfinished(place: Place, catalog: Catalog, path: str) -> bool:
    """Whether a writer was killed between this file and the catalog; any other file is set aside."""
    try:
        facts_of(place.read(path), place.path(path))
        is_raw = path.startswith((RAW, EVENTS))
        number, newest = file_number(path), catalog.compacted if is_raw else catalog.change
        if number > newest or (merge_number(path) or 0) > catalog.change:
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
    newest = max((file_number(path) for path in facts if path.startswith((RAW, EVENTS))), default=0)
    gone = {path for path in facts if path.startswith((RAW, EVENTS)) and file_number(path) == newest in segments}
    for path in sorted(facts, key=lambda path: TIER_MS.get(facts[path].origin.tier, 0)):
        if gone.intersection(facts[path].origin.sources):
            gone.add(path)
    rest = [one for path, one in facts.items() if path not in gone]
    gone.update(path for one in rest for path in one.origin.replaces)
    for path in sorted(gone, key=lambda path: -TIER_MS.get(facts[path].origin.tier, 0) if path in facts else 0):
        place.remove(path)  # lower resolution first: it would be taken for all that is left of the others
    facts = {path: one for path, one in facts.items() if path not in gone}
    merged = {path: by for by, one in facts.items() for path in one.origin.replaces}
    columns: list[tuple[str, ...]] = []
    files, metrics, tables = [], dict[str, MetricEntry](), dict[str, tuple[str, ...]]()
    for path, one in sorted(facts.items()):
        names = tuple(sorted(one.metrics))
        if names not in columns:
            columns.append(names)
        metrics |= one.metrics
        edges: tuple[int, int | None] = one.first_ms, one.last_ms
        if one.origin.tier == EVENTS:
            edges = edges_of(decode_events(contents[path], path))
        else:
            tables[one.origin.table] = one.labels
        sources = tuple(dict.fromkeys(_newest(source, merged) for source in one.origin.sources))
        origin = msgspec.structs.replace(one.origin, sources=sources if set(sources) & facts.keys() else ())
        place_of_names = columns.index(names)
        files.append(
            stored_file(path, origin, edges=edges, rows=one.rows, content=contents[path], columns=place_of_names)
        )
    changes = [merge_number(path) or file_number(path) for path in facts]
    catalog = Catalog(
        change=1 + max(changes, default=0),
        compacted=max((file_number(path) for path in facts if path.startswith((RAW, EVENTS))), default=0),
        newest_ms=max((file.last_ms or 0 for file in files if file.tier != EVENTS), default=0),
        metrics=metrics,
        tables=tables,
        columns=tuple(columns),
        files=tuple(files),
    )
    place.write(CATALOG, encode_catalog(catalog))
    return catalog


def _newest(path: str, merged: dict[str, str]) -> str:
    """The file that has the rows of another one now."""
    while path in merged:
        path = merged[path]
    return path


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
