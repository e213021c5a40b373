"""Where are the recorded traces, and which tests need them?"""

from __future__ import annotations

from pathlib import Path

import pytest

_SHARED_TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "traces"


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder of the recorded traces that lie beside the checkout."""
    if not _SHARED_TRACES.is_dir():
        pytest.skip("the recorded traces (../shared/traces) are not here")
    return _SHARED_TRACES
