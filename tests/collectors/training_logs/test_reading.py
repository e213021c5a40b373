"""Logs of any size, form and content: compressed, in other encodings, of no framework, damaged."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.training_logs import text
from stepscope.collectors.training_logs.hf_trainer import HfTrainerLog
from stepscope.collectors.training_logs.megatron import MegatronLog
from stepscope.collectors.training_logs.other_frameworks import OneLineLog
from stepscope.collectors.training_logs.reading import read_training_log
from stepscope.collectors.training_logs.text import last_stamp, log_lines
from stepscope.collectors.training_logs.torchtitan import TorchtitanLog
from stepscope.core.errors import DataError
from tests.collectors.training_logs.frameworks import bar, deepspeed, durations, megatron, read, titan, with_timers

_LINES = [megatron(number, 900.0) for number in (1, 2)]


@pytest.mark.parametrize(
    ("pack", "encoding"),
    [(bytes, "utf-8"), (bytes, "utf-16"), *((pack, "utf-8") for pack in (gzip.compress, bz2.compress, lzma.compress))],
)
def test_compressed_and_encoded(pack: Callable[[bytes], bytes], encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pack("\r\n".join(_LINES).encode(encoding)))
    log = read_training_log(tmp_path / "a")
    assert log is not None
    assert durations(log) == [(1, 1, 900.0), (2, 1, 900.0)]


def test_bytes_that_are_no_text_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\xff\xfe\x00\x81\n".join(line.encode() for line in ["", *_LINES]))
    log = read_training_log(tmp_path / "a.log")
    assert log is not None
    assert len(log.steps) == 2


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_damaged_and_endless_files_are_refused_in_one_line(
    pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(b"x" * 100_000)
    (tmp_path / "cut").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        list(log_lines(tmp_path / "cut"))
    monkeypatch.setattr(text, "_MAX_UNPACKED", 1 << 16)
    monkeypatch.setattr(text, "_MAX_COMPRESSION", 0)
    (tmp_path / "bomb").write_bytes(packed)
    with pytest.raises(DataError, match="unpacks to more than"):
        list(log_lines(tmp_path / "bomb"))


def test_archives_are_named(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("a.log")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    for content, said in (
        (packed.getvalue(), "is a tar archive"),
        (b"PK\x03\x04", "zip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
    ):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DataError, match=said):
            list(log_lines(tmp_path / "a"))


def test_lines_without_end_are_cut(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000 + b"\n" + _LINES[0].encode())
    lines = list(log_lines(tmp_path / "a"))
    assert max(map(len, lines)) <= 1 << 14
    assert lines[-1] == _LINES[0]


def test_a_log_of_no_framework_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1 loss 2.0\niteration 3 of 5\n 50%| 5/10\n")
    assert read_training_log(tmp_path / "a.log") is None


def test_megatron_s_lines_come_before_deepspeed_s(tmp_path: Path) -> None:
    lines = [deepspeed(1, 3.0), "steps: 1 loss: 9.2318 iter time (s): 2.5 samples/sec: 6.482", deepspeed(2, 3.0)]
    assert durations(read(tmp_path, lines)) == [(1, 1, 3000.0), (2, 1, 3000.0)]


@pytest.mark.parametrize(
    ("line", "source"),
    [
        (
            "[INFO] completed step: {}, seconds: 5.018, TFLOP/s/device: 107.1, Tokens/s/device: 6529.5, loss: 10.172",
            "MaxText",
        ),
        ("[2024-03-07 15:27:15,063] steps: {} loss: 9.2318 iter time (s): 5.018 samples/sec: 6.482", "DeepSpeed"),
    ],
)
def test_other_frameworks(line: str, source: str, tmp_path: Path) -> None:
    log = read(tmp_path, [line.format(step) for step in (10, 20)])
    assert (log.source, durations(log)) == (source, [(10, 10, 5018.0), (20, 10, 5018.0)])


@pytest.mark.parametrize(
    ("line", "ns", "is_fine"),
    [
        ("[1970-01-01 00:00:02] x", 2 * 10**9, False),
        ("[19700101 00:00:02][rank-0/8]", 2 * 10**9, False),
        ("1970-01-01T00:00:02.5Z", 2_500_000_000, True),
        ("1970-01-01 00:00:01,5 [1970-01-01 00:00:02]", 1_500_000_000, True),
        ("[1970-01-01 00:00:01] 1970-01-01 00:00:02,123", 2_123_000_000, True),
    ],
)
def test_times_in_lines(line: str, ns: int, is_fine: bool) -> None:
    assert last_stamp(line) == (ns, is_fine)


@pytest.mark.parametrize("line", ["", "1970-13-01 00:00:02", "12026-04-06 22:33:50", "2026-04-06 25:33:50", "22:33:50"])
def test_what_is_no_time(line: str) -> None:
    assert last_stamp(line) is None


_SAMPLES = [
    *with_timers([megatron(1, 900.0, seconds=1), megatron(2, 900.0, seconds=2)], "time (ms) | batch-generator: 1.0"),
    "(min, max) time across ranks (ms):",
    "    forward-backward ...............................: (210.40, 221.30)",
    "  batch-generator:",
    "     rank  0: 1.00",
    *(titan(step, float(step)) for step in range(1, 4)),
    *(bar(step, 4, 20 * step) for step in range(5)),
    "{'loss': 6.254, 'grad_norm': 1.799}",
    "{'eval_runtime': 5.0}",
    "{'train_runtime': 120.0, 'train_steps_per_second': 0.5}",
    "completed step: 4, seconds: 5.018, loss: 10.172",
    "Total optimization steps = 1,000",
]


_PARTS = st.tuples(st.sampled_from(_SAMPLES), st.integers(0, 200), st.text(max_size=6), st.booleans())


@given(st.lists(_PARTS, max_size=30))
def test_damaged_lines_give_plausible_steps_or_none(parts: list[tuple[str, int, str, bool]]) -> None:
    readers = MegatronLog(), TorchtitanLog(), OneLineLog(), HfTrainerLog()
    for line, place, inserted, is_cut in parts:
        for reader in readers:
            reader.take(line[:place] + inserted + ("" if is_cut else line[place:]))
    for reader in readers:
        log = reader.finish()
        for steps in log.steps if log is not None else ():
            assert steps.num_steps >= 1
            assert 0 <= steps.ms <= 1e12
            assert steps.index >= 0
            assert all(0 <= ms <= 1e12 for ms in steps.phases_ms.values())


def test_a_profilers_trace_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    header = b'{\n  "schemaVersion": 1,\n  "traceEvents": [\n'
    events = random.Random(1).randbytes(1 << 20).hex().encode()
    path.write_bytes(gzip.compress(header + events)[:-1000])
    assert read_training_log(path) is None
    path.write_bytes(gzip.compress(events)[:-1000])
    with pytest.raises(DataError, match="cannot be read"):
        read_training_log(path)
