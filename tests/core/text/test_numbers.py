"""Counted nouns: singular and plural."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.core.text.numbers import counted, form, listed, significant

_PLURAL = re.compile(
    r" (?!(?:is|has|was|does|this|its|less|across|bytes)\b)(?:[a-z-]+ )?(?!bytes)[A-Za-z-]*[A-RT-Za-rt-z]s\b"
)
_NEVER_ONE = {
    "finer.num_micro_batches micro-batches",
    "growth.num_steps steps",
    "job.world_size ranks",
    "len(...) jobs",
    "len(...) logs",
    "len(...) memory snapshots",
    "len(...) processes",
    "len(...) ranks",
    "len(...) runs",
    "len(...) values",
    "num_attempts starts",
    "num_gpus GPUs",
    "num_parameters parameters",
    "num_ranks ranks",
    "plan.world_size ranks",
    "report.growth.num_steps steps keeps",
    "world_size ranks",
}
"""Said only where there are several."""


@pytest.mark.parametrize(
    ("number", "singular", "text"),
    [(0, "step", "0 steps"), (1, "step", "1 step"), (2, "step", "2 steps"), (1200, "event", "1,200 events"),
     (2, "boundary", "2 boundaries"), (2, "relay", "2 relays"), (2, "process", "2 processes"),
     (2, "micro-batch", "2 micro-batches"), (1.0, "page", "1 page"), (3.0, "page", "3 pages"), (0.6, "page", "1 page")],
)  # fmt: skip
def test_a_number_stands_with_its_noun(number: float, singular: str, text: str) -> None:
    assert counted(number, singular) == text


def test_a_plural_that_no_rule_makes_is_told() -> None:
    assert counted(2, "run of one", "runs of one") == "2 runs of one"
    assert form(1, "index", "indices") == "index"
    assert form(2, "index", "indices") == "indices"


def test_no_text_of_the_package_puts_a_plural_behind_a_number_of_things() -> None:
    """Numbers that are plainly counts by their names: `len(...)`, `num_...`; of them one may be."""
    package = Path(stepscope.__file__).parent
    found = [
        text for path in sorted(package.rglob("*.py")) for text in _plurals(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert set(found) == _NEVER_ONE


def _plurals(module: ast.Module) -> Iterator[str]:
    for text in ast.walk(module):
        if not isinstance(text, ast.JoinedStr):
            continue
        for number, behind in pairwise(text.values):
            if not isinstance(number, ast.FormattedValue) or not isinstance(behind, ast.Constant):
                continue
            if _is_count(number.value) and (noun := _PLURAL.match(str(behind.value))):
                yield f"{_count_name(number.value)}{noun[0]}"


def _count_name(value: ast.expr) -> str:
    return "len(...)" if isinstance(value, ast.Call) else ast.unparse(value)


def _is_count(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "len"
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name.startswith(("num_", "silent", "world_size"))


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(1489.1, 3, "1,489"), (999.4, 3, "999"), (999.6, 3, "1,000"), (12.34, 3, "12.3"), (0.1234, 3, "0.123"),
     (0, 3, "0"),
     (-1489.1, 3, "-1,489"), (12345.6, 4, "12,346"), (1234.5, 4, "1234"), (9999.6, 4, "10,000"),
     (3e30, 3, "3e+30")],
)  # fmt: skip
def test_significant_digits(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


def test_a_change_has_its_sign() -> None:
    assert significant(1489.1, sign="+") == "+1,489"
    assert significant(2.5, sign="+") == "+2.5"
    assert significant(-2.5, sign="+") == "-2.5"


@given(st.floats(min_value=1, max_value=1e15), st.integers(2, 6))
def test_what_is_large_has_no_exponent(value: float, digits: int) -> None:
    assert "e" not in significant(value, digits)


def test_long_lists_name_the_first_and_say_that_there_are_more() -> None:
    assert listed([3, 1]) == "3, 1"
    assert listed(range(9), most=8) == "0, 1, 2, 3, 4, 5, 6, 7, ..."
