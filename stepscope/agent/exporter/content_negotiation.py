"""Format and compression of the metrics page, by the headers of the request, as prometheus-client chooses them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENMETRICS = "application/openmetrics-text"
_ESCAPINGS = ("allow-utf-8", "underscores", "dots", "values")
_UNDERSCORES = "underscores"


@dataclass(frozen=True, slots=True)
class PageFormat:
    """Text format of the metrics page.

    Attributes:
        escaping: what happens to names that are not plain; `dots` changes ours too.
    """

    content_type: str
    is_openmetrics: bool
    escaping: str = _UNDERSCORES


def page_format_of(accept: str) -> PageFormat:
    """The format that a scrape of the agent's metrics page asks for: OpenMetrics, else Prometheus' text format."""
    for part in accept.split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        if kind not in (_OPENMETRICS, "text/plain"):
            continue
        values = {name.strip(): value.strip() for name, _, value in (one.partition("=") for one in parameters)}
        version = values.get("version", "")
        if kind == _OPENMETRICS and not version:
            return PageFormat(f"{_OPENMETRICS}; version=1.0.0; charset=utf-8", is_openmetrics=True)
        if not _is_from_1_0_0(version):
            continue
        escaping = values.get("escaping", _UNDERSCORES)
        escaping = escaping if escaping in _ESCAPINGS else _UNDERSCORES
        shown = version if kind == _OPENMETRICS else "1.0.0"
        return PageFormat(
            f"{kind}; version={shown}; charset=utf-8; escaping={escaping}", kind == _OPENMETRICS, escaping
        )
    return PageFormat("text/plain; version=0.0.4; charset=utf-8", is_openmetrics=False)


def _is_from_1_0_0(version: str) -> bool:
    numbers = version.split(".")
    return all(re.fullmatch(r"[0-9]{1,9}", one) for one in numbers) and tuple(map(int, numbers)) >= (1, 0, 0)


def accepts_gzip(accept_encoding: str) -> bool:
    """Agent's exporter: whether a scrape of its metrics page accepts gzip.

    It is named, without a weight of zero, which forbids it.
    """
    for part in accept_encoding.lower().split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        if name == "gzip":
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, weight = parameter.partition("=")
    return name.strip() == "q" and re.fullmatch(r"0(\.0*)?", weight.strip()) is not None
