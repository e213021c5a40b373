"""A rank that launched kernels and whose trace has none is missing evidence, also where the other ranks are whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.core.vocabulary import Cause
from stepscope.workflow.analyze import analyze
from stepscope.workflow.what_if import what_if
from tests.workflow.written_traces import trace_document

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def _job(folder: Path, num_ranks: int) -> Path:
    """Ranks of which the first has no activity of the device."""
    folder.mkdir()
    for rank in range(num_ranks):
        document = trace_document(rank, world_size=num_ranks)
        if rank == 0:
            document["traceEvents"] = [e for e in document["traceEvents"] if e.get("cat") not in _ON_DEVICE]
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("num_ranks", [2, 16])
def test_nothing_is_promised(tmp_path: Path, num_ranks: int) -> None:
    job = _job(tmp_path / "job", num_ranks)
    analysis = analyze([str(job)]).analysis
    verdict = analysis.verdict
    assert (verdict.cause is Cause.INSUFFICIENT_EVIDENCE) == (num_ranks == 2)
    assert verdict.confidence <= 0.5
    assert verdict.fix is None
    assert analysis.what_if == []
    assert "of rank 0 left no kernel" in verdict.summary
    assert verdict.actions[0].startswith("record again")
    assert any(notice.code == "missing_device_activities" for notice in analysis.warnings)
    with pytest.raises(DataError, match="of rank 0 left no kernel"):
        what_if([str(job)])
