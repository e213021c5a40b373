"""Which files of a history are to be made, merged and removed."""

from __future__ import annotations

from stepscope.store.history.catalog import DAY_MS, HOUR_MS, Catalog, StoredFile, file_choice
from stepscope.store.history.plans import MERGE_CELLS, Retention, expired_files, lower_plans, merge_plan


def file(tier: str, hour: int, *sources: str, number: int = 1, hours: int = 1, rows: int = 10) -> StoredFile:
    """A file of one hour of a table."""
    span = hour * HOUR_MS
    return StoredFile(
        f"{tier}/{hour}-{number}", tier, "gpu", span, span + 1, span + hours * HOUR_MS, rows, 100, 0, 0, hours, sources
    )


def catalog(*files: StoredFile) -> Catalog:
    """A catalog of files with one metric."""
    return Catalog(columns=(("power",),), files=files)


def paths(files: list[StoredFile] | tuple[StoredFile, ...]) -> list[str]:
    """Paths of files."""
    return [one.path for one in files]


def test_hours_that_are_over_get_their_minutes_first() -> None:
    known = catalog(file("raw", 0), file("raw", 1), file("raw", 2), file("1m", 0, "raw/0-1"))
    plans = list(lower_plans(known, 2 * HOUR_MS))
    assert [(plan.tier, paths(plan.sources), plan.replaced) for plan in plans] == [
        ("1m", ["raw/1-1"], ()),
        ("10m", ["1m/0-1"], ()),
    ]


def test_late_rows_are_summed_up_again_with_the_others_while_those_are_there() -> None:
    late = file("raw", 0, number=7)
    minutes, tens = file("1m", 0, "raw/0-1"), file("10m", 0, "1m/0-1")
    (plan,) = lower_plans(catalog(file("raw", 0), late, minutes, tens), HOUR_MS)
    assert (paths(plan.sources), paths(plan.replaced)) == (["raw/0-1", "raw/0-7"], ["1m/0-1", "10m/0-1"])
    (plan,) = lower_plans(catalog(late, minutes, tens), HOUR_MS)
    assert (paths(plan.sources), plan.replaced) == (["raw/0-7"], ())


def test_a_question_reads_each_row_once() -> None:
    files = [file("raw", 1), file("1m", 0, "raw/0-1"), file("1m", 1, "raw/1-1"), file("10m", 0, "1m/0-1")]
    there = paths(files)
    assert sorted(paths(file_choice(files, (), there))) == ["1m/0-1", "raw/1-1"]
    assert sorted(paths(file_choice(files, ("1m",), there))) == ["1m/0-1", "1m/1-1"]
    assert sorted(paths(file_choice(files, ("1m", "10m"), there))) == ["10m/0-1", "1m/1-1"]


def test_small_files_of_a_day_that_is_over_are_merged() -> None:
    raw = [file("raw", hour) for hour in range(3)]
    minutes = [file("1m", hour, f"raw/{hour}-1") for hour in range(3)]
    tens = [file("10m", hour, f"1m/{hour}-1") for hour in range(3)]
    assert merge_plan(catalog(*raw, *minutes, *tens), DAY_MS - HOUR_MS) == []
    assert paths(merge_plan(catalog(*raw, *minutes, *tens), DAY_MS)) == ["raw/0-1", "raw/1-1", "raw/2-1"]
    assert merge_plan(catalog(*raw, *minutes[1:]), DAY_MS) == []
    large = [file("raw", hour, rows=MERGE_CELLS) for hour in range(3)]
    assert merge_plan(catalog(*large, *minutes), DAY_MS) == []


def test_rows_go_by_age_only_after_their_minutes_are_there() -> None:
    retention = Retention(raw_seconds=3600, one_minute_seconds=7200, ten_minutes_seconds=10800)
    alone, covered = file("raw", 0), file("raw", 1)
    files = catalog(alone, covered, file("1m", 1, "raw/1-1"))
    assert paths(expired_files(files, retention, 3 * HOUR_MS + 1)) == ["raw/1-1"]
    assert expired_files(files, retention, 3 * HOUR_MS) == []


def test_the_oldest_samples_go_by_size_before_minutes() -> None:
    files = [file("raw", hour) for hour in range(3)] + [file("1m", hour, f"raw/{hour}-1") for hour in range(3)]
    assert paths(expired_files(catalog(*files), Retention(max_bytes=450), 0)) == ["raw/0-1", "raw/1-1"]
    assert expired_files(catalog(*files), Retention(max_bytes=600), 0) == []
