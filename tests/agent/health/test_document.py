"""Does docs/guides/health.md tell of every rule and every XID?"""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.agent.config.settings import Thresholds
from stepscope.agent.health.episodes import hysteresis_of
from stepscope.core.hardware.xids import XIDS, XidClass

_TEXT = (Path(__file__).parents[3] / "docs/guides/health.md").read_text()


def test_every_code_has_a_row() -> None:
    rows = {
        code
        for line in _TEXT.splitlines()
        if line.startswith("| `")
        for code in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert rows == {*hysteresis_of(Thresholds()), "xid_N", "sxid_N"}


def test_every_xid_is_in_the_row_of_its_class() -> None:
    rows = {line.split("|")[1].strip(): line.split("|")[4] for line in _TEXT.splitlines() if line.startswith("| ")}
    for kind in XidClass:
        if kind is XidClass.UNCLASSIFIED:
            continue
        told = re.sub(r"\([^)]*\)", "", rows[kind])
        numbers = set()
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", told):
            numbers |= set(range(int(first), int(last or first) + 1))
        assert numbers == {number for number, xid in XIDS.items() if xid.kind is kind}, kind
