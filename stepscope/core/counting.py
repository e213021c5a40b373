"""How is a number of things said, so that one of them is no plural?"""

from __future__ import annotations


def counted(number: float, singular: str, plural: str | None = None) -> str:
    """The number with its noun: '1 step', '1,200 steps', '2 boundaries'. Fractions are rounded to whole things."""
    return f"{number:,.0f} {form(round(number), singular, plural)}"


def form(number: float, singular: str, plural: str | None = None) -> str:
    """The word that agrees with the number: of 1 'rank' or 'has', of all others, 0 too, 'ranks' or 'have'."""
    return singular if number == 1 else plural or _plural(singular)


def _plural(singular: str) -> str:
    """As English makes it: 'steps', 'boundaries', 'processes', 'micro-batches'."""
    if singular.endswith("y") and singular[-2:-1] not in "aeiou":
        return f"{singular[:-1]}ies"
    return f"{singular}es" if singular.endswith(("s", "x", "ch", "sh")) else f"{singular}s"
