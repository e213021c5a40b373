"""Host time goes to the user's innermost function, whatever of torch or the standard library runs inside it."""

from __future__ import annotations

import pytest

from stepscope.analyzer.intervals import single
from stepscope.analyzer.ledger.python_frames import time_by_function
from stepscope.trace.columns import Category
from tests.analyzer.build import AUTOGRAD, MAIN, TraceBuilder

_US = 1_000
_FIRST_STEP_NS = 100 * _US


def _time(*frames: tuple[str, int, int], thread: int = MAIN) -> dict[str, int]:
    """Microseconds of 100 to 200 by function; frames with begin and end."""
    builder = TraceBuilder()
    builder.operator("aten::mm", 100, 101)
    builder.operator("aten::mm", 100, 101, thread=AUTOGRAD)
    for name, begin, end in frames:
        builder.operator(name, begin, end, thread=thread, category=Category.PYTHON_FUNCTION)
    trace = builder.build()
    lanes = sorted(set(trace.lane.tolist()))
    found = time_by_function(trace, lanes, single(100 * _US, 200 * _US), _FIRST_STEP_NS)
    return {function: nanoseconds // _US for function, nanoseconds in found.items()}


@pytest.mark.parametrize("thread", [MAIN, AUTOGRAD])
def test_the_innermost_own_function_counts(thread: int) -> None:
    frames = [
        ("train.py(40): <module>", 0, 300),
        ("train.py(30): train_step", 100, 190),
        ("data/text.py(9): tokenise", 110, 170),
        ("json/decoder.py(332): decode", 120, 160),
        ("data/text.py(10): <listcomp>", 130, 135),
        ("transformers/tokenization_utils.py(5): encode", 161, 168),
    ]
    assert _time(*frames, thread=thread) == {
        "data/text.py:9 tokenise": 60,
        "train.py:30 train_step": 30,
        "train.py:40 <module>": 10,
    }


def test_repeated_calls_of_a_function_add_up() -> None:
    calls = [("train.py(3): f", begin, begin + 5) for begin in range(100, 200, 10)]
    assert _time(*calls) == {"train.py:3 f": 50}


def test_a_framework_that_runs_the_loop_is_named_before_the_script_around_it() -> None:
    frames = [
        ("train.py(40): main", 0, 300),
        ("transformers/trainer.py(3700): training_step", 100, 180),
        ("/usr/lib/python3.12/random.py(7): choice", 120, 130),
    ]
    assert _time(*frames) == {"transformers/trainer.py:3700 training_step": 80, "train.py:40 main": 20}


def test_the_standard_library_alone_is_named_as_well() -> None:
    assert _time(("threading.py(1002): _bootstrap", 0, 300)) == {"threading.py:1002 _bootstrap": 100}


def test_without_frames_nothing_is_named() -> None:
    assert _time() == {}
    assert _time(("nn.Module: Linear_0", 100, 200)) == {}
