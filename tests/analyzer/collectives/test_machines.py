"""Ranks with one host name on several machines are told apart, and only those."""

from __future__ import annotations

from stepscope.analyzer.collectives.calls import match_calls
from stepscope.analyzer.collectives.clocks import machine_of_rank
from tests.analyzer.collectives.test_clocks import MS, US, job

HALF_A_STEP_NS = 50 * MS


def machines_of(ahead_ns: dict[int, int], hosts: dict[int, str | None] | None = None) -> dict[int, str | None]:
    calls = job([tuple(ahead_ns)], ahead_ns)
    named = hosts or dict.fromkeys(ahead_ns, "localhost")
    return machine_of_rank(calls, match_calls(calls), named, HALF_A_STEP_NS)


def test_ranks_of_one_name_with_different_clocks_are_on_several_machines() -> None:
    machines = machines_of({0: 7 * MS, 1: 0, 2: 7 * MS, 3: 0})
    assert machines == {
        0: "localhost",
        1: "localhost (machine 2)",
        2: "localhost",
        3: "localhost (machine 2)",
    }


def test_ends_that_nearly_agree_are_of_one_machine() -> None:
    assert set(machines_of({0: 0, 1: 30 * US, 2: 0}).values()) == {"localhost"}


def test_a_whole_step_apart_is_matched_wrongly_and_no_clock() -> None:
    assert set(machines_of({0: 0, 1: 100 * MS}).values()) == {"localhost"}


def test_other_hosts_and_nameless_ranks_keep_what_they_have() -> None:
    hosts: dict[int, str | None] = {0: "a", 1: "b", 2: None, 3: None}
    assert machines_of({0: 0, 1: 7 * MS, 2: 3 * MS, 3: 0}, hosts) == hosts
