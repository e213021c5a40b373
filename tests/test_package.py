"""Package: cheap to import, complete when built, with correct entry points."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope

_ROOT = Path(stepscope.__file__).parents[1]
_HEAVY = ("torch", "pynvml", "dash", "pandas", "numpy", "plotly", "msgspec", "click")
_MOST_MILLISECONDS = 100.0

_PROBE = """
import json, sys, time
before = set(sys.modules)
began = time.perf_counter()
import stepscope
milliseconds = (time.perf_counter() - began) * 1e3
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({"ms": milliseconds, "loaded": sorted(loaded)}))
"""


def _import_in_fresh_interpreter() -> dict[str, object]:
    output = subprocess.run(
        [sys.executable, "-c", _PROBE], check=True, capture_output=True, text=True, cwd=_ROOT
    ).stdout
    answer: dict[str, object] = json.loads(output)
    return answer


def test_import_loads_nothing_heavy() -> None:
    loaded = _import_in_fresh_interpreter()["loaded"]
    assert isinstance(loaded, list)
    assert not set(_HEAVY) & set(loaded)


def test_import_takes_under_100_ms() -> None:
    best = min(float(str(_import_in_fresh_interpreter()["ms"])) for _ in range(3))
    assert best < _MOST_MILLISECONDS


@pytest.mark.parametrize("room", ["agent", "analyzer", "collectors", "dashboard", "reference_workloads"])
def test_signpost_points_into_the_package(room: str) -> None:
    link = _ROOT / room
    assert link.is_symlink()
    assert link.resolve() == _ROOT / "stepscope" / room


def test_every_verb_loads_and_explains_itself() -> None:
    from click.testing import CliRunner

    from stepscope.cli import VERBS, root

    for verb in VERBS:
        result = CliRunner().invoke(root, [verb, "--help"])
        assert result.exit_code == 0, result.output
        assert "Usage:" in result.output


def test_profile_and_every_are_public() -> None:
    assert callable(stepscope.profile)
    assert callable(stepscope.every)
    assert stepscope.slow_step().times == 3
    assert stepscope.once().period is None
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = stepscope.nothing_like_this


def test_the_training_package_is_there_after_import_stepscope() -> None:
    code = "import stepscope; print(stepscope.training.slow_step().times, stepscope.once().active)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "3"]
