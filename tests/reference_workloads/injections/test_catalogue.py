"""Does `--inject` choose the fault and the severity that was asked for, and refuse others in one line?"""

from __future__ import annotations

import pytest

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.injections.catalogue import INJECTIONS, parse_injection
from stepscope.reference_workloads.injections.data import SlowLoader


def test_a_name_alone_has_the_default_severity() -> None:
    assert parse_injection("slow_loader") == SlowLoader()


def test_fields_set_the_severity() -> None:
    assert parse_injection("slow_loader:milliseconds_per_item=5") == SlowLoader(milliseconds_per_item=5.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gremlin", "no injection 'gremlin'"),
        ("slow_loader:speed=1", "no setting 'speed'; it has milliseconds_per_item"),
        ("slow_loader:milliseconds_per_item=fast", "is a float, not 'fast'"),
    ],
)
def test_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_injection(text)
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", INJECTIONS)
def test_each_fault_says_what_must_be_found(name: str) -> None:
    kind = INJECTIONS[name]
    assert kind.name == name
    assert kind.cause
    assert kind.shows
    assert kind.__doc__
