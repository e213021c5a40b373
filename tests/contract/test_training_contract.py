"""Contract of reference training: its output and files are unchanged. Separate, as it needs torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.contract.snapshot import NEED_TORCH, changes_of


@pytest.mark.parametrize("name", NEED_TORCH)
def test_nothing_that_the_outside_relies_on_has_changed(name: str) -> None:
    changes = changes_of(name)
    assert not changes, changes
