"""GPU health: actions, and the severity and action of each XID."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.hardware.health import Action
from stepscope.core.hardware.xids import XIDS, Xid
from stepscope_reference.markdown import code, table, text


def health() -> str:
    """Actions, then the catalogue of XIDs."""
    actions = table(("action", "what to do"), [(code(action), text(action.line)) for action in Action])
    return f"## Actions\n\n{actions}\n## XIDs\n\n{_catalogue(XIDS)}"


def _catalogue(errors: Mapping[int, Xid]) -> str:
    rows = [(str(one.number), one.kind, one.severity, code(one.action), text(one.sentence)) for one in errors.values()]
    return table(("number", "class", "severity", "action", "what"), rows)
