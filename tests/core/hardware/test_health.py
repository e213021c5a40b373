"""Texts of health events say what to do."""

from __future__ import annotations

from stepscope.core.hardware.health import Action, Severity


def test_every_action_has_one_line() -> None:
    for action in Action:
        assert action.line
        assert "\n" not in action.line


def test_severities_are_ordered() -> None:
    assert sorted(Severity, key=lambda severity: severity.rank) == ["info", "warning", "critical"]
