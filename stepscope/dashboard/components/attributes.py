"""How does a component get an attribute whose name is no Python name, such as aria-label or data-value?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def attributes(named: Mapping[str, object]) -> dict[str, Any]:
    """Keyword arguments for `html.*`: Dash takes any `data-*` and `aria-*`, but its signatures know none of them."""
    return dict(named)
