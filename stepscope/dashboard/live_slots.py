"""Slots of live pages: the parts that a tick replaces.

Dash builds all below a changed `children` anew, so slots are small: else opened details would close, focus would
go and the map would be drawn again every few seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import dash
from dash.development.base_component import Component
from plotly.io.json import to_json_plotly

SLOT = "live"
"""Key of a slot's id: {"live": NAME}."""


def slot(kind: Callable[..., Component], name: str, content: Any, **properties: Any) -> Component:
    """A component whose content is made again while somebody looks at it."""
    return kind(content, id={SLOT: name}, **properties)


def slots_of(body: Any) -> dict[str, Any]:
    """Content of each slot of a page by its name."""
    if isinstance(body, (list, tuple)):
        return {name: content for part in body for name, content in slots_of(part).items()}
    if not isinstance(body, Component):
        return {}
    own, content = getattr(body, "id", None), getattr(body, "children", None)
    return {own[SLOT]: content} if isinstance(own, dict) and SLOT in own else slots_of(content)


def digests(slots: Mapping[str, Any]) -> dict[str, int]:
    """Checksum of the content of each slot."""
    return {name: zlib.crc32(str(to_json_plotly(content)).encode()) for name, content in slots.items()}


def changes(body: Any, names: list[str], known: Mapping[str, int] | None) -> tuple[Any, list[Any], dict[str, int]]:
    """What a tick changes: the whole page if it has other slots now, else the slots that are not as they were.

    Args:
        names: slots that the browser has.
        known: checksums of their content.

    Returns:
        The page or no update, the slots or no updates, and the checksums now.
    """
    slots = slots_of(body)
    now = digests(slots)
    if sorted(slots) != sorted(names):
        return body, [dash.no_update] * len(names), now
    before = known or {}
    return (
        dash.no_update,
        [slots[name] if now[name] != before.get(name) else dash.no_update for name in names],
        now,
    )
