"""Parsers of /proc and /sys give back what was written, and accept any text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.host.cgroups import parse_cpu_limit, parse_limit_bytes, parse_membership, parse_mounts
from stepscope.collectors.host.machine import (
    parse_counts,
    parse_cpu_list,
    parse_cpu_stat,
    parse_diskstats,
    parse_load,
    parse_meminfo,
    parse_pressure,
)
from stepscope.collectors.host.networks import parse_net_dev, parse_port_rate, parse_port_state, parse_snmp
from stepscope.collectors.host.processes import parse_fields, parse_process_stat, parse_run_delay
from stepscope.core.text.numbers import format_cpu_list

PARSERS: tuple[Callable[[str], object], ...] = (
    *(
        parse_cpu_stat,
        parse_load,
        parse_meminfo,
        parse_counts,
        parse_diskstats,
        parse_net_dev,
        parse_pressure,
        parse_port_state,
    ),
    *(
        parse_port_rate,
        parse_mounts,
        parse_membership,
        parse_cpu_limit,
        parse_limit_bytes,
        parse_process_stat,
        parse_fields,
    ),
    *(parse_run_delay, parse_cpu_list),
)
counts = st.integers(0, 2**64 - 1)


@given(st.text(st.sampled_from("0123456789²٣ \t\n:-,.()/=abcpusomefulltavg\\")))
def test_no_text_is_an_error(text: str) -> None:
    for parse in PARSERS:
        parse(text)
    parse_snmp(text, "Tcp")


@given(st.frozensets(st.integers(0, 2000)))
def test_lists_of_cpus_come_back(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus


@pytest.mark.parametrize("text", ["a", "3-1", "1,,2", "0-3:1/2", "-1", "9999999"])
def test_what_is_no_list_of_cpus(text: str) -> None:
    assert parse_cpu_list(text) is None


@given(st.lists(counts, min_size=8, max_size=10), st.integers(0, 300))
def test_stat_comes_back(ticks: list[int], num_cpus: int) -> None:
    text = f"cpu  {' '.join(map(str, ticks))}\n" + "".join(f"cpu{cpu} 1 2 3\n" for cpu in range(num_cpus))
    stat = parse_cpu_stat(text + "ctxt 5\n")
    assert list(stat.ticks.values()) == ticks[:8]
    assert (stat.num_cpus, stat.counts) == (num_cpus, {"ctxt": 5})


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Za-z0-9_()]{0,12}", fullmatch=True), counts))
def test_meminfo_comes_back_of_the_machine_and_of_a_node(kilobytes: dict[str, int]) -> None:
    machine = "".join(f"{name}:{number:15d} kB\n" for name, number in kilobytes.items())
    node = "".join(f"Node 3 {name}:{number:15d} kB\n" for name, number in kilobytes.items())
    assert parse_meminfo(machine) == parse_meminfo(node) == {name: n * 1024 for name, n in kilobytes.items()}


@given(st.lists(counts, min_size=16, max_size=16), st.sampled_from(["eth0", "ib0", "eth0:1", "bond0.100"]))
def test_interfaces_come_back(numbers: list[int], name: str) -> None:
    assert parse_net_dev(f"{name:>6}:{' '.join(map(str, numbers))}\n") == {name: tuple(numbers)}


@given(st.lists(counts, min_size=11, max_size=17))
def test_disks_come_back(numbers: list[int]) -> None:
    ((name, values),) = parse_diskstats(f" 8 0 sda {' '.join(map(str, numbers))}\n")
    reads, read_bytes, _, writes, written_bytes, _, in_flight, _ = values
    assert (name, reads, read_bytes) == ("sda", numbers[0], numbers[2] * 512)
    assert (writes, written_bytes, in_flight) == (numbers[4], numbers[6] * 512, numbers[8])


@given(st.integers(0, 10**15), st.integers(0, 10000))
def test_pressure_comes_back(microseconds: int, hundredths: int) -> None:
    (line,) = parse_pressure(f"full avg10={hundredths / 100:.2f} avg60=0.00 avg300=0.00 total={microseconds}\n")
    assert (line.share, line.seconds) == ("full", microseconds / 1e6)
    assert line.ratios[0] == pytest.approx(hundredths / 10000)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max 100000", None), ("150000 100000\n", 1.5), ("-1 100000", None), ("1 0", None), ("", None), ("5", None)],
)
def test_limits_of_cpus(text: str, limit: float | None) -> None:
    assert parse_cpu_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "rate"),
    [("400 Gb/sec (4X NDR)\n", 50e9), ("2.5 Gb/sec (1X SDR)", 312.5e6), ("", None), ("1.2.3 Gb/sec", None)],
)
def test_rates(text: str, rate: float | None) -> None:
    assert parse_port_rate(text) == rate
