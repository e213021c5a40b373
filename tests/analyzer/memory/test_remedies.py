"""Remedies after memory ran out in pieces."""

from __future__ import annotations

import pytest

from stepscope.analyzer.memory.remedies import remedies_for
from stepscope.core.documents.memory import Fragmentation, MemoryCategory


@pytest.mark.parametrize(
    ("settings", "is_advised"),
    [
        ("", True),
        ("expandable_segments:False", True),  # set, but off
        ("expandable_segments:True", False),
        ("max_split_size_mb:64, expandable_segments: true", False),
    ],
)
def test_segments_that_expand_are_advised_where_they_are_off(settings: str, is_advised: bool) -> None:
    pieces = Fragmentation(inactive_bytes=8, largest_bytes=2, in_used_segments_bytes=8, ratio=0.75)
    changes = [remedy.change for remedy in remedies_for({}, pieces, None, None, settings)]
    assert any("expandable_segments:True" in change for change in changes) is is_advised


@pytest.mark.parametrize(
    ("parameters", "is_alone", "levels"), [(8, False, ["1", "2", "3"]), (0, False, ["1", "2"]), (8, True, [])]
)
def test_zero_is_advised_where_it_saves_and_other_ranks_are_seen(
    parameters: int, is_alone: bool, levels: list[str]
) -> None:
    held = dict.fromkeys((MemoryCategory.OPTIMIZER, MemoryCategory.GRADIENTS), 8)
    held[MemoryCategory.PARAMETERS] = parameters
    none = Fragmentation(inactive_bytes=0, largest_bytes=0, in_used_segments_bytes=0, ratio=0.0)
    changes = [remedy.change for remedy in remedies_for(held, none, None, None, "", is_alone=is_alone)]
    assert sorted(change[5] for change in changes if change.startswith("ZeRO ")) == levels
