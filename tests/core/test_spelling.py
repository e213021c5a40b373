"""Is the name that was meant found, and none where nothing is near?"""

from __future__ import annotations

import pytest

from stepscope.core.spelling import nearest


@pytest.mark.parametrize(
    ("name", "near"), [("analize", "analyze"), ("steptime", "step_time"), ("foo", None), ("", None)]
)
def test_the_nearest_name_is_told(name: str, near: str | None) -> None:
    assert nearest(name, ["analyze", "step_time", "communication"]) == near
