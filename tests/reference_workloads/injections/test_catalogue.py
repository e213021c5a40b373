"""`--inject` selects the requested fault and severity, and rejects others in one line."""

from __future__ import annotations

from dataclasses import fields

import pytest

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.injections.catalogue import INJECTIONS, parse_injection
from stepscope.reference_workloads.injections.host import SlowLoader


def test_a_name_alone_has_the_default_severity() -> None:
    assert parse_injection("slow_loader") == SlowLoader()


def test_fields_set_the_severity() -> None:
    assert parse_injection("slow_loader:milliseconds_per_item=5") == SlowLoader(milliseconds_per_item=5.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gremlin", 'unknown fault "gremlin"; known: allocator_churn, '),
        ("slow_loader:speed=1", 'fault slow_loader: unknown setting "speed"; known: milliseconds_per_item'),
        ("slow_loader:milliseconds_per_item=fast", "is a number, not 'fast'"),
        ("slow_loader:num_workers=1.5", "num_workers of injection slow_loader is a whole number, not '1.5'"),
        ("slow_loader:num_workers=1,num_workers=2", "slow_loader has num_workers twice; give it once"),
        ("slow_loader:milliseconds_per_item=-5", "of injection slow_loader is above 0, not -5"),
        ("slow_loader:milliseconds_per_item=nan", "is above 0, not nan"),
        ("slow_loader:num_workers=-1", "is at least 0, not -1"),
        ("bursty_loader:num_workers=0", "is at least 1, not 0"),
        ("cpu_starved_loader:cpu_milliseconds_per_item=inf", "is above 0, not inf"),
        ("straggler:extra_ratio=-3", "is above 0, not -3"),
        ("uneven_stages:moved_ratio=-4", "is above 0 and at most 1, not -4"),
        ("oom_fragmentation:kept_ratio=2", "is above 0.5 and below 1, not 2"),
        ("oom_growth:copies_per_layer=0", "is at least 1, not 0"),
        ("launch_bound:num_layers=0", "is at least 1, not 0"),
        ("host_sync:reads_per_layer=-1", "is at least 1, not -1"),
        ("dying_rank:timeout_seconds=0", "is above 0, not 0"),
    ],
)
def test_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_injection(text)
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", INJECTIONS)
def test_no_severity_of_any_fault_may_be_negative_or_no_number(name: str) -> None:
    for field in fields(INJECTIONS[name]):
        for value in ("-1", "nan") if field.type == "float" else ("-1",):
            with pytest.raises(UsageError, match=rf"{field.name} of injection {name} is"):
                parse_injection(f"{name}:{field.name}={value}")


@pytest.mark.parametrize("name", INJECTIONS)
def test_each_fault_says_what_must_be_found(name: str) -> None:
    kind = INJECTIONS[name]
    assert kind.name == name
    assert kind.cause
    assert kind.shows
    assert kind.__doc__
