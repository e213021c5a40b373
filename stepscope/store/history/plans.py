"""What is to be done with the files of a metric history: lower resolution, merging, retention. Pure: a catalog in,
files out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepscope.store.history.catalog import DAY_MS, EVENTS, HOUR_MS, RAW, TIER_MS, Catalog, StoredFile

_DAY_SECONDS = 86400
_TIERS = tuple(TIER_MS)
MERGE_CELLS = 2_000_000
"""Rows x columns of a file that small ones are merged into; 16 MB of values in memory."""
_COLUMNS_OF_LOWER = 5
"""Of one metric in rows of lower resolution, about."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is kept, from the end of an hour. Rows go only after those of the next lower resolution are whole.

    Attributes:
        raw_seconds, one_minute_seconds, ten_minutes_seconds: of rows as they came, and of lower resolution.
        events_seconds: of events after their end.
        max_bytes: of all Parquet files together; the oldest rows of the finest resolution go first.
    """

    raw_seconds: float = 14 * _DAY_SECONDS
    one_minute_seconds: float = 90 * _DAY_SECONDS
    ten_minutes_seconds: float = 730 * _DAY_SECONDS
    events_seconds: float = 730 * _DAY_SECONDS
    max_bytes: int | None = None

    def seconds_of(self, tier: str) -> float:
        """Age at which files of a tier go."""
        return {RAW: self.raw_seconds, "1m": self.one_minute_seconds, "10m": self.ten_minutes_seconds}.get(
            tier, self.events_seconds
        )


@dataclass(frozen=True, slots=True)
class LowerPlan:
    """A file of lower resolution that is to be made.

    Attributes:
        sources: what it is made from.
        replaced: files that it takes the place of, and what was made from those.
    """

    tier: str
    table: str
    sources: tuple[StoredFile, ...]
    replaced: tuple[StoredFile, ...]


def lower_plans(catalog: Catalog, open_hour_ms: int) -> Iterator[LowerPlan]:
    """Files of lower resolution that hours before the open one lack; the finer resolution and the older hours first."""
    covered = _sources(catalog)
    users: dict[str, list[StoredFile]] = defaultdict(list)
    for file in catalog.files:
        for source in file.sources:
            users[source].append(file)
    there = {file.path for file in catalog.files}
    for finer, tier in pairwise(_TIERS):
        groups: dict[tuple[int, str], list[StoredFile]] = defaultdict(list)
        for file in catalog.files:
            if file.tier == finer and file.span_ms + file.hours * HOUR_MS <= open_hour_ms:
                groups[file.span_ms, file.table].append(file)
        for (_, table), sources in sorted(groups.items()):
            paths = {file.path for file in sources}
            if paths <= covered:
                continue
            made = {file.path: file for path in paths for file in users[path] if file.tier == tier}
            again = [  # what can be made again, with all that was made from it
                file
                for file in made.values()
                if paths.issuperset(file.sources) and all(there.issuperset(user.sources) for user in users[file.path])
            ]
            of_again = {source for file in again for source in file.sources}
            chosen = tuple(file for file in sources if file.path not in covered or file.path in of_again)
            yield LowerPlan(tier, table, chosen, (*again, *(user for file in again for user in users[file.path])))


def merge_plan(catalog: Catalog, open_hour_ms: int) -> list[StoredFile]:
    """Small files of one table and day that are to become one, when the day is over and has its lower resolution."""
    covered = _sources(catalog)
    days: dict[tuple[str, str, int], list[StoredFile]] = defaultdict(list)
    for file in catalog.files:
        day = file.span_ms // DAY_MS * DAY_MS
        if file.tier != EVENTS and day + DAY_MS <= open_hour_ms:
            days[file.tier, file.table, day].append(file)
    for (tier, _, _), files in days.items():
        if len(files) < 2 or (tier != _TIERS[-1] and any(file.path not in covered for file in files)):
            continue
        group: list[StoredFile] = []
        for file in sorted(files, key=lambda file: (file.span_ms, file.path)):
            if group and sum(num_cells(catalog, one) for one in (*group, file)) > MERGE_CELLS:
                if len(group) > 1:
                    return group
                group = []
            group.append(file)
        if len(group) > 1:
            return group
    return []


def num_cells(catalog: Catalog, file: StoredFile) -> int:
    """About how many values a file has."""
    return file.rows * len(catalog.columns[file.columns]) * (1 if file.tier == RAW else _COLUMNS_OF_LOWER)


def expired_files(catalog: Catalog, retention: Retention, now_ms: int) -> list[StoredFile]:
    """Files that are to go, by age or, where none is too old, by size."""
    covered = _sources(catalog)
    may_go = [file for file in catalog.files if file.tier in (_TIERS[-1], EVENTS) or file.path in covered]
    old = [
        file
        for file in may_go
        if file.last_ms is not None
        and now_ms - max(file.span_ms + file.hours * HOUR_MS, file.last_ms) > 1000 * retention.seconds_of(file.tier)
    ]
    if old or retention.max_bytes is None:
        return old
    excess = sum(file.bytes for file in catalog.files) - retention.max_bytes
    samples = [file for file in may_go if file.tier != EVENTS]
    for file in sorted(samples, key=lambda file: (_TIERS.index(file.tier), file.span_ms)):
        if excess <= 0:
            break
        old.append(file)
        excess -= file.bytes
    return old


def small_parts(
    files: Sequence[StoredFile], table: str, span_ms: int, *, num_rows: int, max_rows: int
) -> list[StoredFile]:
    """Raw files of one hour that new rows of it are merged with: small ones, of which no lower resolution is made.

    Args:
        num_rows, max_rows: of the new rows; of all together.
    """
    used = {source for file in files for source in file.sources}
    found: list[StoredFile] = []
    for file in sorted(files, key=lambda file: file.rows):
        is_of_hour = (file.tier, file.table, file.span_ms, file.hours) == (RAW, table, span_ms, 1)
        if is_of_hour and file.rows <= num_rows and file.path not in used and num_rows + file.rows <= max_rows:
            found.append(file)
            num_rows += file.rows
    return found


def remade_with(files: Sequence[StoredFile], damaged: Sequence[StoredFile]) -> list[StoredFile]:
    """Files that are to be made again, as damaged ones are that can be: others of the same sources, and what was made
    from any of them. What cannot be made again, as samples, is stood in for by what was made from it."""
    there = {file.path for file in files if file not in damaged}
    again = {file.path for file in damaged if file.sources and there.issuperset(file.sources)}
    num_known = -1
    while num_known < len(again):
        num_known = len(again)
        sources = {(file.tier, file.sources) for file in files if file.path in again}
        again |= {
            file.path for file in files if (file.tier, file.sources) in sources or again.intersection(file.sources)
        }
    return [file for file in files if file.path in again and file not in damaged]


def _sources(catalog: Catalog) -> set[str]:
    return {source for file in catalog.files for source in file.sources}
