"""How many digits does a number show?"""

from __future__ import annotations

_LARGEST = 1e15


def significant(value: float, digits: int = 3, *, sign: str = "") -> str:
    """Significant digits, all of those before the point, and no exponent for what is large: '0.123', '1,489'.

    Beyond 1e15, which no time, size or count reaches, digits tell nothing: '3e+30'.

    Args:
        value: the number.
        digits: least number of them, as far as they are not zeros at the end.
        sign: '+' where a plus is to stand before what is not negative.
    """
    is_whole = 10**digits - 0.5 <= abs(value) <= _LARGEST
    return f"{value:{sign},.0f}" if is_whole else f"{value:{sign}.{digits}g}"
