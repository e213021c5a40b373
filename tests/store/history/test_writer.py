"""The writer of the embedded history under trouble: kills, damage, a full disk, jumping clocks; retention."""

from __future__ import annotations

import errno
import logging
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stepscope.core.errors import DataError
from stepscope.store.history import maintenance, places
from stepscope.store.history.embedded import EmbeddedHistory, history_at
from stepscope.store.history.plans import Retention
from stepscope.store.history.questions import GroupBy, Question, Statistic, TimeRange
from stepscope.store.history.writer import HistoryWriter
from tests.store.history.blocks import DAY, ENERGY, HOUR, MINUTE, POWER, SECOND, START, as_dict, block, gpu, maintain

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

NUM_GPUS = 3


def write(writer: HistoryWriter, begin: int, end: int, clock: list[int] | None = None) -> None:
    """Append a sample of each GPU every 15 s, from minute `begin` to minute `end`; flush each minute."""
    for sample in range(begin * 4 + 1, end * 4 + 1):
        time = START + sample * 15 * SECOND
        if clock is not None:
            clock[0] = time
        gpus = [gpu(index) for index in range(NUM_GPUS)]
        writer.append(block(gpus, time, **{POWER: [float(sample)] * NUM_GPUS, ENERGY: [sample * 30.0] * NUM_GPUS}))
        if sample % 4 == 0:
            writer.flush()
            maintain(writer)


def count(history: EmbeddedHistory, minutes: int) -> float:
    """Number of samples of all GPUs in the history: the sum over minutes of their number in each."""
    total = 0.0
    for series in range(NUM_GPUS):
        question = Question(POWER, (), Statistic.MEAN, {"gpu": str(series)})
        answer = history.range(question, TimeRange(START, START + minutes * MINUTE, 15 * SECOND))
        total += float(np.count_nonzero(~np.isnan(answer.values)))
    return total


def files(folder: Path, tier: str) -> list[Path]:
    """Parquet files of a tier."""
    return sorted(folder.glob(f"{tier}/*/*.parquet"))


def check(folder: Path, minutes: int) -> None:
    """All samples are there, once."""
    history = history_at(folder)
    assert count(history, minutes) == NUM_GPUS * minutes * 4
    time = TimeRange(START, START + minutes * MINUTE, MINUTE)
    power = as_dict(history.range(Question(POWER, ()), time))[()]
    assert power == [sum(range(4 * minute + 1, 4 * minute + 5)) / 4 for minute in range(minutes)]
    assert as_dict(history.range(Question(ENERGY, ()), time))[()] == [2.0] * minutes


def test_hours_become_files_of_each_resolution(tmp_path: Path) -> None:
    clock = [START]
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        write(writer, 0, 150, clock)
    assert [len(files(tmp_path, tier)) for tier in ("raw", "1m", "10m")] == [2, 2, 2]
    check(tmp_path, 150)


def test_raw_rows_go_by_age_when_a_minute_is_whole(tmp_path: Path) -> None:
    clock = [START]
    retention = Retention(raw_seconds=3600, one_minute_seconds=3 * 3600, ten_minutes_seconds=6 * 3600)
    with HistoryWriter(tmp_path, retention=retention, clock=lambda: clock[0]) as writer:
        write(writer, 0, 310, clock)
        assert [len(files(tmp_path, tier)) for tier in ("raw", "1m", "10m")] == [5, 5, 5]  # kept for readers
        catalog = writer.catalog
        assert [sum(file.tier == tier for file in catalog.files) for tier in ("raw", "1m", "10m")] == [1, 3, 5]
    history = history_at(tmp_path)
    hours = as_dict(history.range(Question(POWER, ()), TimeRange(START, START + 5 * HOUR, 10 * MINUTE)))[()]
    assert hours == [sum(range(40 * step + 1, 40 * step + 41)) / 40 for step in range(30)]
    rates = as_dict(history.range(Question(ENERGY, ()), TimeRange(START, START + 5 * HOUR, 10 * MINUTE)))[()]
    assert rates == pytest.approx([2.0] * 30)


def test_the_oldest_rows_go_by_size(tmp_path: Path) -> None:
    clock = [START]
    with HistoryWriter(tmp_path, retention=Retention(max_bytes=60_000), clock=lambda: clock[0]) as writer:
        write(writer, 0, 250, clock)
        assert sum(file.bytes for file in writer.catalog.files) < 60_000
        spans = {tier: [f.span_ms for f in writer.catalog.files if f.tier == tier] for tier in ("raw", "1m", "10m")}
    assert len(spans["10m"]) == 4
    for tier in ("raw", "1m"):
        assert spans[tier] == spans["10m"][4 - len(spans[tier]) :]


def test_damaged_and_foreign_files_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = [START]
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        write(writer, 0, 190, clock)
    first, second, third = files(tmp_path, "raw")
    content = bytearray(second.read_bytes())
    content[len(content) // 3] ^= 0xFF
    second.write_bytes(content)
    first.write_bytes(first.read_bytes()[:500])
    (third.parent / "2026-11-27T10-1.parquet").write_bytes(b"PAR1 half of a file")
    remaining = NUM_GPUS * (60 * 4 + 2 * 60)  # raw of the last hour, of the others the minutes
    history = history_at(tmp_path)
    assert count(history, 180) == remaining
    assert caplog.text.count("is damaged; left out") == 2
    caplog.clear()
    HistoryWriter(tmp_path, clock=lambda: clock[0]).close()
    assert caplog.text.count("set aside as") == 2  # the other has the right size: found when it is read
    assert len(list((tmp_path / "damaged").iterdir())) == 2
    history = history_at(tmp_path)
    assert count(history, 180) == remaining
    lower = as_dict(history.range(Question(POWER, ()), TimeRange(START, START + 3 * HOUR, HOUR)))[()]
    assert lower == [120.5, 360.5, 600.5]  # of the minutes


def test_a_large_hour_is_worked_on_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PART_CELLS", 700)
    monkeypatch.setattr(maintenance, "BATCH_BYTES", 20_000)
    clock = [START]
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        write(writer, 0, 130, clock)
        first_hour = [file.tier for file in writer.catalog.files if file.span_ms == START // 10**6]
        assert first_hour.count("raw") > 1
        assert first_hour.count("1m") > 1
    check(tmp_path, 130)
    files(tmp_path, "1m")[0].write_bytes(b"")
    check(tmp_path, 130)  # by the samples
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        maintain(writer)
    check(tmp_path, 130)
    for path in files(tmp_path, "raw"):
        path.unlink()
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        maintain(writer)
    time = TimeRange(START, START + 2 * HOUR, 10 * MINUTE)
    answer = as_dict(history_at(tmp_path).range(Question(ENERGY, ()), time))[()]
    assert answer == pytest.approx([2.0] * 12)


def test_small_files_of_a_day_become_one(tmp_path: Path) -> None:
    """Samples every 20 minutes for two days and an hour, then one that is late, then without the catalog."""
    clock = [START]
    samples = [(step * 20 * MINUTE, float(step)) for step in range(1, 49 * 3 + 1)]

    def ask() -> list[float | None]:
        answer = history_at(tmp_path).range(Question(ENERGY, ()), TimeRange(START, START + 50 * HOUR, 2 * HOUR))
        power = history_at(tmp_path).range(Question(POWER, ()), TimeRange(START, START + 49 * HOUR, 20 * MINUTE))
        assert as_dict(power)[()] == [value for _, value in samples]
        return as_dict(answer)[()]

    def tiers(writer: HistoryWriter) -> dict[str, int]:
        maintain(writer)
        return {tier: sum(file.tier == tier for file in writer.catalog.files) for tier in ("raw", "1m", "10m")}

    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        for after, value in samples:
            clock[0] = START + after
            writer.append(block([gpu(0)], clock[0], **{POWER: [value], ENERGY: [value * 1200]}))
            writer.flush()
            maintain(writer)
        assert tiers(writer) == {"raw": 2, "1m": 2, "10m": 2}
        assert ask() == [1.0] * 25
        late = START + 3 * HOUR + 10 * MINUTE
        writer.append(block([gpu(1)], late, **{POWER: [7.0], ENERGY: [0.0]}))
        writer.flush()
        writer.compact()
        assert tiers(writer) == {"raw": 3, "1m": 2, "10m": 2}  # the last hour is open
        one = history_at(tmp_path).range(Question(POWER, where={"gpu": "1"}), TimeRange(START, START + DAY, MINUTE))
        assert one.values[~np.isnan(one.values)].tolist() == [7.0]
        assert one.times_ns[~np.isnan(one.values[0])].tolist() == [late]
    (tmp_path / "history.json").unlink()
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        writer.compact()
        assert tiers(writer) == {"raw": 3, "1m": 2, "10m": 2}
        assert as_dict(history_at(tmp_path).range(Question(ENERGY), TimeRange(START, START + DAY, DAY))) == {
            gpu(0): [1.0]
        }


def test_a_damaged_segment_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with HistoryWriter(tmp_path, clock=lambda: START) as writer:
        write(writer, 0, 8)
    segment = sorted((tmp_path / "segments").iterdir())[3]
    segment.write_bytes(segment.read_bytes()[:-9])
    assert count(history_at(tmp_path), 8) == NUM_GPUS * 4 * 7
    assert "checksum is wrong" in caplog.text
    with HistoryWriter(tmp_path, clock=lambda: START) as writer:
        writer.compact()
    assert (tmp_path / "damaged" / "segments.000000000004.segment").is_file()
    assert count(history_at(tmp_path), 8) == NUM_GPUS * 4 * 7


def test_a_damaged_catalog_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = [START]
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        write(writer, 0, 190, clock)
    (tmp_path / "history.json").write_text('{"schema": "stepsc')
    with pytest.raises(DataError, match=r"history\.json: is damaged"):
        history_at(tmp_path)
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        assert "set aside as" in caplog.text
        check(tmp_path, 190)
        write(writer, 190, 250, clock)
    check(tmp_path, 250)
    (tmp_path / "history.json").unlink()
    with HistoryWriter(tmp_path, clock=lambda: clock[0]) as writer:
        writer.compact()
    check(tmp_path, 250)


def test_a_full_disk_is_a_warning_and_writing_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with HistoryWriter(tmp_path, clock=lambda: START) as writer:
        write(writer, 0, 1)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))  # EFBIG, as a full disk is ENOSPC
            caplog.set_level(logging.CRITICAL)  # its own file may be too large
            write(writer, 1, 2)
            assert not writer.flush()
            writer.compact()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, old)
        caplog.set_level(logging.INFO)
        write(writer, 2, 3)
        writer.compact()
        assert "can be written again; nothing is lost" in caplog.text
    check(tmp_path, 3)


def test_of_a_long_outage_the_oldest_samples_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.store.history.writer.MAX_PENDING_BYTES", 2000)
    with HistoryWriter(tmp_path, clock=lambda: START) as writer:
        place = writer._place

        def refuse(name: str, _: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

        with monkeypatch.context() as full:
            full.setattr(place, "write", refuse)
            write(writer, 0, 5)
        assert caplog.text.count("cannot be written ([Errno 28] No space left on device") == 1
        write(writer, 5, 6)
        assert "batches lost" in caplog.text
    assert NUM_GPUS * 4 < count(history_at(tmp_path), 6) < NUM_GPUS * 4 * 6


def test_jumping_clocks_lose_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = [START]
    retention = Retention(raw_seconds=6 * 3600, one_minute_seconds=12 * 3600, ten_minutes_seconds=18 * 3600)
    seconds = [
        *range(0, 7200, 60),
        *range(3605, 10000, 60),
        *range(86400 * 3, 86400 * 3 + 600, 60),
        *range(10030, 12000, 60),
    ]
    with HistoryWriter(tmp_path, retention=retention, clock=lambda: clock[0]) as writer:
        for value, second in enumerate(seconds):
            clock[0] = START + second * SECOND
            writer.append(block([gpu(0)], clock[0], **{POWER: [float(value)]}))
            writer.flush()
            maintain(writer)
    assert [line.split(": ")[-1] for line in caplog.messages] == [
        "time went back by 3535 s; samples are kept",
        "time went forth by 249235 s; samples are kept",
        "time went back by 249710 s; samples are kept",
    ]
    history = history_at(tmp_path)
    answer = history.range(Question(POWER), TimeRange(START - SECOND, START + 4 * 24 * HOUR - SECOND, 5 * SECOND))
    assert sorted(answer.values[~np.isnan(answer.values)].tolist()) == [float(value) for value in range(len(seconds))]


_CHILD = """
import sys, itertools
import numpy as np
from stepscope.store.history import maintenance
from stepscope.store.history.writer import HistoryWriter
from tests.store.history.test_writer import NUM_GPUS, write
maintenance.GRACE_SECONDS = 0
folder, begin = sys.argv[1], int(sys.argv[2])
clock = [0]
writer = HistoryWriter(folder, clock=lambda: clock[0])
for minute in itertools.count(begin):
    write(writer, minute, minute + 1, clock)
    print(minute + 1, flush=True)
"""


def test_a_kill_at_any_moment_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    chance = random.Random(0)
    minutes = 0
    for _ in range(4):
        command = [sys.executable, "-c", _CHILD, str(tmp_path), str(minutes)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            stop = minutes + chance.randrange(20, 100)
            for line in child.stdout:
                minutes = int(line)
                if minutes >= stop:
                    break
            child.send_signal(signal.SIGKILL)
            minutes = max([minutes, *map(int, child.stdout.read().split())])
        HistoryWriter(tmp_path, clock=lambda: START).close()
        history = history_at(tmp_path)
        time = TimeRange(START, START + minutes * MINUTE, MINUTE)
        assert as_dict(history.range(Question(POWER, ()), time))[()] == [
            sum(range(4 * minute + 1, 4 * minute + 5)) / 4 for minute in range(minutes)
        ]


def test_a_history_on_an_object_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import fsspec

    clock = [START]
    url = f"memory://history-{os.getpid()}-{tmp_path.name}"
    try:
        with HistoryWriter(url, clock=lambda: clock[0]) as writer:
            with pytest.raises(DataError, match="another writer has this history"):
                HistoryWriter(url)
            write(writer, 0, 70, clock)
            history = history_at(url)
            assert count(history, 70) == NUM_GPUS * 70 * 4
            answer = history.range(Question(POWER, (GroupBy.NODE,)), TimeRange(START, START + HOUR, HOUR))
            assert answer.values.tolist() == [[120.5]]
        memory = fsspec.filesystem("memory")
        path = max(memory.ls(f"{url}/segments", detail=False))
        memory.pipe_file(path, memory.cat_file(path)[:-7])
        assert count(history_at(url), 70) == NUM_GPUS * 69 * 4
        assert "is damaged" in caplog.text
        with HistoryWriter(url, clock=lambda: clock[0]) as writer:
            writer.compact()
        assert count(history_at(url), 70) == NUM_GPUS * 69 * 4
    finally:
        fsspec.filesystem("memory").rm(url, recursive=True)


def test_a_writer_that_slept_through_its_lease_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://slept-{os.getpid()}-{tmp_path.name}"
    slept = HistoryWriter(url)
    slept.append(block([gpu(0)], START + MINUTE, **{POWER: [1.0]}))
    assert slept.flush()
    with pytest.raises(DataError, match=r"if that one was killed, the place is free in 1[12]\d s"):
        HistoryWriter(url)
    monkeypatch.setattr(places, "LEASE_SECONDS", 0.0)
    with HistoryWriter(url) as other:
        other.append(block([gpu(1)], START + MINUTE, **{POWER: [2.0]}))
        other.compact()
    slept.append(block([gpu(0)], START + 2 * MINUTE, **{POWER: [3.0]}))
    with pytest.raises(DataError, match="another writer"):
        slept.maintain()
    with pytest.raises(DataError, match="another writer"):
        slept.flush()
    with HistoryWriter(url):
        found = as_dict(history_at(url).range(Question(POWER), TimeRange(START, START + 2 * MINUTE, MINUTE)))
    assert found == {gpu(0): [1.0, None], gpu(1): [2.0, None]}
