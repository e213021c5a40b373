"""State of a page: what its URL's query holds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from urllib.parse import parse_qs, urlencode


class ColourBy(StrEnum):
    """What a GPU's colour on the map says."""

    DEVIATION = "deviation"
    VALUE = "value"


SPANS: dict[str, int] = {"15min": 900, "1h": 3600, "6h": 6 * 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400}
"""Time ranges of pages, which end now, in seconds."""


@dataclass(frozen=True, slots=True)
class PageState:
    """State of a page, as its URL's query has it; what is at its default is not in the query.

    Attributes:
        metric: key of the map's metric; empty: the first that there is.
        colour: what the map shows.
        last: time range, a key of SPANS.
    """

    metric: str = ""
    colour: ColourBy = ColourBy.DEVIATION
    last: str = "24h"

    @classmethod
    def parse(cls, query: str) -> PageState:
        """State in a query ('?metric=power&last=1h'); what is wrong or unknown there is at its default."""
        found = {name: values[-1] for name, values in parse_qs(query.removeprefix("?")).items()}
        colour = found.get("colour")
        return cls(
            metric=found.get("metric", ""),
            colour=ColourBy(colour) if colour in list(ColourBy) else ColourBy.DEVIATION,
            last=found["last"] if found.get("last") in SPANS else "24h",
        )

    @property
    def span_seconds(self) -> int:
        """Length of the time range, s."""
        return SPANS[self.last]

    def query(self, **changes: str) -> str:
        """The query of this state with changes, '' or beginning with '?'."""
        state = replace(self, **changes)  # type: ignore[arg-type]  # StrEnum or str
        default = PageState()
        named = {one.name: str(getattr(state, one.name)) for one in fields(state)}
        text = urlencode({name: value for name, value in named.items() if value != str(getattr(default, name))})
        return f"?{text}" if text else ""
