"""May an answer be compressed? As the request's Accept-Encoding says."""

from __future__ import annotations

import re


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether gzip is named there, and not with a weight of zero, which forbids it."""
    for part in accept_encoding.lower().split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        if name == "gzip":
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, weight = parameter.partition("=")
    return name.strip() == "q" and re.fullmatch(r"0(\.0*)?", weight.strip()) is not None
