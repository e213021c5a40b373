"""A listener that cannot be created affects neither the others nor training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("owner", "name", "missing"),
    [
        ("torch.amp.GradScaler", "_check_scale_growth_tracker", ["loss scale"]),
        ("torch.compiler", "is_compiling", ["evaluations", "norm of clipped gradients", "settings inside of steps"]),
    ],
)
def test_what_torch_lacks_costs_what_needs_it_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: str,
    name: str,
    missing: list[str],
) -> None:
    monkeypatch.delattr(f"{owner}.{name}")
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        for _ in range(3):
            prof.step(loss=1.0)
    lines = [json.loads(line) for line in (tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]
    assert [(line["index"], line["loss"]) for line in lines] == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert "host_memory_bytes" in lines[0]
    said = [record.getMessage() for record in caplog.records if "without its" in record.getMessage()]
    assert sorted(line.split(":")[0] for line in said) == [f"stepscope measures without its {name}" for name in missing]
