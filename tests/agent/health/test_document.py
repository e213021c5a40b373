"""Documentation of health: every rule is in the guide, every XID in the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.episodes import health_hysteresis_of
from stepscope.core.hardware.xids import XIDS, Xid
from stepscope_reference import PAGES
from stepscope_reference.markdown import text

_TEXT = (Path(__file__).parents[3] / "docs/guides/health.md").read_text()


def test_every_code_has_a_row() -> None:
    rows = {
        code
        for line in _TEXT.splitlines()
        if line.startswith("| `")
        for code in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert rows == {*health_hysteresis_of(HealthThresholds()), "xid_N", "sxid_N"}


@pytest.mark.parametrize("xid", XIDS.values(), ids=lambda xid: str(xid.number))
def test_every_xid_has_a_row_with_its_class_severity_and_action(xid: Xid) -> None:
    row = [str(xid.number), xid.kind, xid.severity, f"`{xid.action}`", text(xid.sentence)]
    assert f"| {' | '.join(row)} |" in PAGES["health"]()
