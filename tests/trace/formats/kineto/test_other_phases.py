"""Damaged events of other phases (metadata, flows, counters, instants) are handled alike by both readers.

They become no rows, so a wrong type costs nothing; broken text is repaired and counted; without a phase it is dropped.
"""

from __future__ import annotations

import io
import json

import pytest

from stepscope.trace.columns import TraceColumns
from tests.trace.formats.kineto.both_ways import read_both_ways
from tests.trace.one_rank import read_trace_stream

GOOD = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":1.0,"dur":2.0}'
EXACT = GOOD.replace(b'"ts":1.0', b'"ts":1.2345')
"""Its start needs every decimal, so its whole batch is decoded anew."""

OTHERS = {
    "metadata": b'{"ph":"M","name":"process_name","pid":1,"tid":0,"ts":1,"args":{"name":"x"}}',
    "flow": b'{"ph":"s","id":5,"cat":"ac2g","name":"ac2g","pid":1,"tid":2,"ts":1.5}',
    "counter": b'{"ph":"C","cat":"counters","name":"sm","pid":1,"tid":2,"ts":1,"args":{"correlation":1,"":0.5}}',
    "instant": b'{"ph":"i","name":"Record Window End","pid":1,"tid":2,"ts":1.5,"s":"g","args":{}}',
}
WRONG_TYPES = {
    "process": (b'"pid":1', b'"pid":1.5'),
    "no process": (b'"pid":1', b'"pid":null'),
    "process as list": (b'"pid":1', b'"pid":[1]'),
    "time as text": (b'"ts":1', b'"ts":"x","was":1'),
    "time beyond numbers": (b'"ts":1', b'"ts":1e400,"was":1'),
    "negative duration": (b'"ts":1', b'"dur":-5,"ts":1'),
    "duration as text": (b'"ts":1', b'"dur":"x","ts":1'),
    "arguments as list": (b'"ts":1', b'"args":[1],"ts":1'),
    "arguments": (b'"ts":1', b'"args":{"correlation":"x","grid":5},"ts":1'),
    "large argument": (b'"ts":1', b'"args":{"correlation":99999999999999999999999},"ts":1'),
    "name": (b'"name":"', b'"name":5,"was":"'),
    "category": (b'"pid":1', b'"cat":5,"pid":1'),
    "unknown phase": (b'"ph":"', b'"ph":"XX","was":"'),
    "doubled phase": (b'"ph":"', b'"ph":"X","ph":"'),
}
BROKEN_TEXT = {
    "NaN": (b'"ts":1', b'"ts":NaN,"was":1'),
    "control character": (b'"name":"', b'"name":"\x01'),
    "backslash": (b'"name":"', b'"name":"\\Z'),
    "lone surrogate": (b'"name":"', b'"name":"\\ud800'),
    "inner quote": (b'"name":"', b'"name":"a"b'),
    "lost quote": (b'"pid"', b'pid"'),
    "decimal comma": (b'"ts":1', b'"ts":1,5,"was":1'),
    "lost value": (b'"ts":1', b'"ts":,"was":1'),
    "doubled comma": (b'"ts"', b',"ts"'),
}
LOST = {
    "no phase": (b'"ph"', b'"was"'),
    "empty phase": (b'"ph":"', b'"ph":"","was":"'),
    "phase as number": (b'"ph":"', b'"ph":5,"was":"'),
    "complete without duration": (b'"ph":"', b'"ph":"X","was":"'),
    "escaped phase": (b'"ph":"', b'"ph":"\\u0058","was":"'),
    "too deep": (b'"ts":1', b'"z":' + b"[" * 1100 + b"]" * 1100 + b',"ts":1'),
}

BLOCKS_BYTES = (100, 300, 1 << 19)
"""With short blocks the accelerator reads some of them; the last one is always searched for damage."""


def _read(damaged: bytes, *, company: bytes, block_bytes: int) -> TraceColumns:
    text = b"[" + b",".join((GOOD, GOOD, GOOD, company, damaged, GOOD, GOOD, GOOD)) + b"]"
    return read_both_ways(
        lambda: read_trace_stream(io.BytesIO(text), path="t.json", file_bytes=len(text), block_bytes=block_bytes)
    )


@pytest.mark.parametrize("company", [GOOD, EXACT])
@pytest.mark.parametrize("phase", OTHERS)
@pytest.mark.parametrize(("damages", "repaired", "dropped"), [(WRONG_TYPES, 0, 0), (BROKEN_TEXT, 1, 0), (LOST, 0, 1)])
def test_damage_counts_the_same_in_c_and_in_python(
    damages: dict[str, tuple[bytes, bytes]], repaired: int, dropped: int, phase: str, company: bytes
) -> None:
    for kind, (old, new) in damages.items():
        damaged = OTHERS[phase].replace(old, new, 1)
        assert damaged != OTHERS[phase], kind
        for block_bytes in BLOCKS_BYTES:
            trace = _read(damaged, company=company, block_bytes=block_bytes)
            quality = trace.quality
            found = (len(trace), quality.num_events, quality.repaired, quality.dropped)
            assert found == (7, 8, repaired, dropped), (kind, block_bytes)
            assert trace.start_ns.tolist() == [1000] * 3 + [1234 if company == EXACT else 1000] + [1000] * 3, kind


def test_wrong_encodings_in_what_is_not_read_lose_nothing() -> None:
    for phase, sound in OTHERS.items():
        for block_bytes in BLOCKS_BYTES:
            quality = _read(
                sound.replace(b'"name":"', b'"name":"\xff\xfe'), company=GOOD, block_bytes=block_bytes
            ).quality
            assert (quality.num_events, quality.dropped) == (8, 0), phase
            assert quality.repaired <= 1  # not where the name is skipped unread


def test_a_sound_one_is_no_damage() -> None:
    for sound in OTHERS.values():
        json.loads(sound)
        quality = _read(sound, company=GOOD, block_bytes=1 << 19).quality
        assert (quality.repaired, quality.dropped, quality.damaged_at_byte) == (0, 0, None)
