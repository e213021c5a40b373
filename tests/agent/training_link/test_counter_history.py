"""Counters messages: exactly the samples since the last one, of the process's own GPU, never too long."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.polling import SourceState
from stepscope.agent.training_link.counter_history import CounterHistory, bounded_line
from stepscope.core.metrics.readings import (
    CGROUP,
    GPU,
    HOST,
    PROCESS,
    Collection,
    Labels,
    Missing,
    MissingReason,
    Reading,
    labels_of,
    with_labels,
)
from stepscope.core.protocol.counters import MAX_OTHERS, MAX_SAMPLES, Counters, GpuCounters, OtherProcess
from stepscope.core.protocol.messages import MAX_LINE_BYTES, ProtocolError, decode_message, encode_message

_SECOND = 1_000_000_000
_BEGIN = 1_700_000_000 * _SECOND


def _labels(gpu: int) -> Labels:
    return labels_of(gpu=gpu, uuid=f"GPU-{gpu}")


def _gpus(at: int, *, holders: dict[int, dict[int, float | None]], watts: float = 100.0) -> SourceState:
    """GPUs read at a second, the slow poll every ten."""
    now = _BEGIN + at * _SECOND
    readings, missing = [], []
    for gpu, held in holders.items():
        labels = _labels(gpu)
        readings += [
            Reading(GPU + "power_watts", watts + at, labels, now),
            Reading(GPU + "power_limit_watts", 700.0, labels, now - at % 10 * _SECOND),
            Reading(GPU + "throttle_reason", float(at % 2), with_labels(labels, reason="power_cap"), now),
            Reading(GPU + "throttle_reason", 0.0, with_labels(labels, reason="hw_thermal"), now),
        ]
        missing.append(Missing(GPU + "memory_temperature_celsius", labels, MissingReason.NOT_SUPPORTED))
        for pid, memory in held.items():
            of_process = with_labels(labels, pid=pid, kind="compute")
            if memory is None:
                missing.append(Missing(GPU + "process_memory_bytes", of_process, MissingReason.NOT_SUPPORTED))
            else:
                readings.append(Reading(GPU + "process_memory_bytes", memory, of_process, now))
    return SourceState("nvml", Collection(tuple(readings), tuple(missing)), now)


def _host(at: int) -> SourceState:
    now = _BEGIN + at * _SECOND
    readings = [
        Reading(HOST + "cpu_seconds_total", 3.0 + at, labels_of(mode="iowait"), now),
        Reading(HOST + "cpu_seconds_total", 99.0, labels_of(mode="user"), now),
        Reading(HOST + "pressure_seconds_total", 1.0, labels_of(resource="io", share="some"), now),
        Reading(HOST + "network_receive_bytes_total", 1e9, labels_of(device="eth0"), now),
        Reading(HOST + "network_receive_bytes_total", 2e9, labels_of(device="eth1"), now),
        Reading(HOST + "network_receive_bytes_total", 7e9, labels_of(device="lo"), now),
        Reading(CGROUP + "cpu_throttled_seconds_total", 4.0, labels_of(cgroup="/pod"), now),
        Reading(CGROUP + "cpu_throttled_seconds_total", 0.5, labels_of(cgroup="/pod/job"), now),
        Reading(CGROUP + "cpu_throttled_seconds_total", 1e6, labels_of(cgroup="/other"), now),
        Reading(
            CGROUP + "pressure_seconds_total", 2.0, labels_of(cgroup="/pod/job", resource="cpu", share="some"), now
        ),
    ]
    for pid, group in ((7, "/pod/job"), (8, "/other")):
        readings += [
            Reading(PROCESS + "info", 1.0, labels_of(pid=pid, command="python", cgroup=group), now),
            Reading(PROCESS + "run_queue_seconds_total", float(pid), labels_of(pid=pid), now),
        ]
    return SourceState("host", Collection(tuple(readings)), now)


def test_a_process_gets_the_samples_of_its_own_gpu_once() -> None:
    history = CounterHistory()
    holders: dict[int, dict[int, float | None]] = {0: {7: 5e9, 8: 1e9, 9: 2e9}, 1: {8: 3e9}}
    for at in range(1, 21):
        history.observe([_gpus(at, holders=holders)], _BEGIN + at * _SECOND)
    message = history.message(7, _BEGIN + 10 * _SECOND, _BEGIN + 20 * _SECOND + 250_000_000)
    assert (message.time_ns, message.seconds) == (_BEGIN + 20 * _SECOND + 250_000_000, 10.25)
    (gpu,) = message.gpus
    assert (gpu.uuid, gpu.age_ms) == ("GPU-0", 250.0)
    assert gpu.times_ns == tuple(_BEGIN + at * _SECOND for at in range(11, 21))
    assert gpu.values["power_watts"] == tuple(100.0 + at for at in range(11, 21))
    assert gpu.values["power_limit_watts"] == (*[None] * 9, 700.0)  # read once in that time
    assert gpu.throttle_reasons == {"power_cap": tuple(float(at % 2) for at in range(11, 21))}
    assert gpu.missing == {"memory_temperature_celsius": "not_supported"}
    assert (gpu.other_processes, gpu.other_memory_bytes) == (2, 3e9)
    assert (gpu.others, gpu.process_memory_bytes) == ((), 5e9)  # nothing else about the others
    assert message.host is None
    assert message.missing == {"host": "not_yet"}


def test_other_processes_of_the_same_user_are_named_and_nobody_elses() -> None:
    history = CounterHistory()
    held: dict[int, float | None] = {7: 5e9, 8: 1e9, 9: 2e9, 10: None} | dict.fromkeys(range(20, 40), 1.0)
    history.observe([_gpus(1, holders={0: held})], _BEGIN + 2 * _SECOND)
    users = {7: 1000, 8: 1000, 9: 1001, 10: 1000} | dict.fromkeys(range(20, 40), 1000)
    (gpu,) = history.message(7, None, _BEGIN + 2 * _SECOND, uid=1000, uid_of=users.get).gpus
    assert gpu.others[0] == OtherProcess(8, 1000, 1e9)
    assert 9 not in [other.pid for other in gpu.others]
    assert (len(gpu.others), gpu.other_processes) == (MAX_OTHERS, 23)
    (of_nobody,) = history.message(7, None, _BEGIN + 2 * _SECOND, uid=None, uid_of=lambda _: None).gpus
    assert of_nobody.others == ()
    message = Counters(1, gpus=(gpu,))
    assert decode_message(encode_message(message)) == message


def test_what_is_not_known_is_none_with_its_reason() -> None:
    history = CounterHistory()
    history.observe([_gpus(1, holders={0: {7: None, 8: None}})], _BEGIN + 2 * _SECOND)
    (gpu,) = history.message(7, None, _BEGIN + 2 * _SECOND).gpus
    assert (gpu.other_processes, gpu.other_memory_bytes) == (1, None)
    for pid, reason in ((99, "not_yet"), (None, "no_permission")):
        nothing = history.message(pid, None, _BEGIN + 2 * _SECOND)
        assert (nothing.gpus, nothing.missing["gpu"]) == ((), reason)
    refused = Missing(GPU + "processes", labels_of(gpu=0, uuid="GPU-0", kind="compute"), MissingReason.NO_PERMISSION)
    history.observe([SourceState("nvml", Collection((), (refused,)), _BEGIN + 3 * _SECOND)], _BEGIN + 3 * _SECOND)
    assert history.message(99, None, _BEGIN + 3 * _SECOND).missing["gpu"] == "no_permission"


def test_of_the_host_a_process_gets_the_machine_itself_and_its_cgroup() -> None:
    history = CounterHistory()
    for at in (5, 10):
        history.observe([_host(at)], _BEGIN + at * _SECOND)
    port = labels_of(device="mlx5_0", port=1)
    ports = (
        Reading(HOST + "infiniband_transmit_bytes_total", 9.0, port, _BEGIN + 1),
        Reading(HOST + "infiniband_errors_total", 2.0, with_labels(port, kind="symbol"), _BEGIN + 1),
        Reading(HOST + "infiniband_errors_total", 3.0, with_labels(port, kind="local_link"), _BEGIN + 1),
    )
    history.observe([_host(10), SourceState("infiniband", Collection(ports), _BEGIN + 1)], _BEGIN + 10 * _SECOND)
    host = history.message(7, _BEGIN + 4 * _SECOND, _BEGIN + 12 * _SECOND).host
    assert host is not None
    assert host.times_ns == (_BEGIN + 5 * _SECOND, _BEGIN + 10 * _SECOND)
    assert host.age_ms == 2000.0
    assert host.values == {
        "cpu_iowait_seconds_total": (8.0, 13.0),
        "pressure_io_some_seconds_total": (1.0, 1.0),
        "network_receive_bytes_total": (3e9, 3e9),
        "infiniband_transmit_bytes_total": (None, 9.0),
        "infiniband_errors_total": (None, 5.0),
        "cgroup_cpu_throttled_seconds_total": (4.5, 4.5),
        "cgroup_pressure_cpu_some_seconds_total": (2.0, 2.0),
        "process_run_queue_seconds_total": (7.0, 7.0),
    }
    assert host.missing == {}


def test_a_source_that_is_trusted_less_adds_nothing_to_a_gpu_of_the_first() -> None:
    history = CounterHistory()
    page = SourceState("dcgm", Collection((Reading(GPU + "power_watts", 1.0, _labels(0), _BEGIN + _SECOND),)), _BEGIN)
    nvml = _gpus(1, holders={0: {7: 1.0}})
    history.observe([nvml, page], _BEGIN + 5 * _SECOND)
    (gpu,) = history.message(7, None, _BEGIN + 5 * _SECOND).gpus
    assert gpu.values["power_watts"] == (101.0,)


def test_a_clock_that_was_set_back_gives_no_sample_of_the_future() -> None:
    history = CounterHistory()
    history.observe([_gpus(50, holders={0: {7: 1.0}}), _host(50)], _BEGIN + 10 * _SECOND)
    history.observe([_gpus(11, holders={0: {7: 1.0}}), _host(11)], _BEGIN + 11 * _SECOND)
    message = history.message(7, None, _BEGIN + 11 * _SECOND)
    assert message.gpus[0].times_ns == (_BEGIN + 11 * _SECOND,)
    assert message.host is not None
    assert message.host.times_ns == (_BEGIN + 11 * _SECOND,)


@given(num_gpus=st.integers(0, 16), num_samples=st.integers(0, MAX_SAMPLES), num_metrics=st.integers(1, 40))
def test_no_message_is_too_long_and_each_is_read_again(num_gpus: int, num_samples: int, num_metrics: int) -> None:
    times = tuple(range(_BEGIN, _BEGIN + num_samples))
    values: dict[str, tuple[float | None, ...]]
    values = {f"metric_{number}_bytes_per_second": (123456789.123456,) * num_samples for number in range(num_metrics)}
    gpus = tuple(
        GpuCounters(f"GPU-{gpu}", times, values, {"power_cap": (1.0,) * num_samples}) for gpu in range(num_gpus)
    )
    line = bounded_line(Counters(_BEGIN, 10.0, gpus))
    assert len(line) <= MAX_LINE_BYTES
    message = decode_message(line)
    assert isinstance(message, Counters)
    kept = sum(len(gpu.times_ns) for gpu in message.gpus)
    if message.gpus:
        assert kept + message.num_left_out == num_gpus * num_samples
        assert all(gpu.times_ns == times[len(times) - len(gpu.times_ns) :] for gpu in message.gpus)
    else:
        assert num_gpus == 0 or message.missing == {"gpu": "unreadable"}


_NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@given(st.lists(st.tuples(st.integers(0, 1 << 60), _NUMBERS), max_size=20))
def test_numbers_come_through_unchanged(samples: list[tuple[int, float | None]]) -> None:
    times, values = tuple(time for time, _ in samples), tuple(value for _, value in samples)
    sent = Counters(_BEGIN, None, (GpuCounters("GPU-1", times, {"power_watts": values}, {}, missing={"a": "gone"}),))
    assert decode_message(encode_message(sent)) == sent
    if samples:
        document = json.loads(encode_message(sent))
        document["gpus"][0]["times_ns"].pop()
        with pytest.raises(ProtocolError, match="as many values as times"):
            decode_message(json.dumps(document).encode())
