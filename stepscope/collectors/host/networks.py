"""Network interfaces, and InfiniBand and RoCE ports: traffic, errors, drops, congestion, link state.

Network interfaces with hardware behind them; without any (a container has one end of a pair), all but the loopback.
InfiniBand's `port_xmit_data` counts words of 4 bytes. Old counters stop at the end of their width; the InfiniBand
specification gives the widths (PortCounters, 16.1.3.5), Linux reads 64 bits of the data counters where the adapter has
them (drivers/infiniband/core/sysfs.c).
"""

from __future__ import annotations

import re

from stepscope.collectors.host.files import Files, not_in_file
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.metrics.readings import HOST, MissingReason

_NET_DEV_COLUMNS = {
    0: HOST + "network_receive_bytes_total",
    1: HOST + "network_receive_packets_total",
    2: HOST + "network_receive_errors_total",
    3: HOST + "network_receive_drops_total",
    8: HOST + "network_transmit_bytes_total",
    9: HOST + "network_transmit_packets_total",
    10: HOST + "network_transmit_errors_total",
    11: HOST + "network_transmit_drops_total",
}
_TCP_METRICS = {"OutSegs": HOST + "tcp_segments_sent_total", "RetransSegs": HOST + "tcp_retransmits_total"}


def parse_net_dev(text: str) -> dict[str, tuple[int, ...]]:
    """Read /proc/net/dev: 16 numbers by interface, 8 received and 8 sent."""
    interfaces = {}
    for line in text.splitlines():
        name, colon, rest = line.rpartition(":")  # the name of an alias has a colon
        words = rest.split()
        if colon and len(words) >= 16 and all(word.isascii() and word.isdecimal() for word in words):
            interfaces[name.strip()] = tuple(int(word) for word in words)
    return interfaces


def parse_snmp(text: str, protocol: str) -> dict[str, int]:
    """Read one protocol of /proc/net/snmp, which has a line of names and one of numbers."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith(f"{protocol}:")]
    if len(lines) < 2:
        return {}
    pairs = zip(lines[0], lines[1], strict=False)
    return {name: int(word) for name, word in pairs if word.lstrip("-").isascii() and word.lstrip("-").isdecimal()}


def read_networks(files: Files, into: ReadingsBuilder) -> None:
    """Read the network interfaces of the host, or of this process's namespace where the files are not mounted."""
    text = _read_net(files, "dev")
    if isinstance(text, NoValue):
        into.miss(_NET_DEV_COLUMNS.values(), text)
    else:
        interfaces = {name: numbers for name, numbers in parse_net_dev(text).items() if name != "lo"}
        real = [name for name in interfaces if files.exists(f"sys/class/net/{name}/device")]
        for name in real or list(interfaces):
            for column, metric in _NET_DEV_COLUMNS.items():
                into.add(metric, interfaces[name][column], device=name)
            folder = f"sys/class/net/{name}"
            into.add(HOST + "network_up", files.parse(f"{folder}/operstate", _parse_operstate), device=name)
            speed = files.parse(f"{folder}/speed", _parse_speed)
            into.add(HOST + "network_speed_bytes_per_second", speed, device=name)
            into.add(HOST + "network_carrier_changes_total", files.number(f"{folder}/carrier_changes"), device=name)
    text = _read_net(files, "snmp")
    if isinstance(text, NoValue):
        into.miss(_TCP_METRICS.values(), text)
        return
    counts = parse_snmp(text, "Tcp")
    for field, metric in _TCP_METRICS.items():
        count = counts.get(field, -1)
        into.add(metric, count if count >= 0 else not_in_file("proc/net/snmp", field))


def _read_net(files: Files, name: str) -> str | NoValue:
    """Of process 1 where the machine's /proc is mounted into a container, whose own network /proc/net shows."""
    if files.is_mounted:
        text = files.read(f"proc/1/net/{name}")
        if not isinstance(text, NoValue):
            return text
    return files.read(f"proc/net/{name}")


def _parse_operstate(text: str) -> int | NoValue:
    if text.strip() == "unknown":  # drivers without one, as of most virtual interfaces
        return NoValue(MissingReason.NOT_SUPPORTED, "the driver reports no link state")
    return 1 if text.strip() == "up" else 0


def _parse_speed(text: str) -> float | NoValue:
    word = text.strip()
    if word.isdecimal() and int(word) != 2**32 - 1:  # -1 where it is not known
        return int(word) * 1e6 / 8
    return NoValue(MissingReason.NOT_SUPPORTED, f"speed {word}: the link is down or has no speed")


_IB_ROOT = "sys/class/infiniband"
_NO_ADAPTER = NoValue(
    MissingReason.NOT_INSTALLED, f"/{_IB_ROOT}: no InfiniBand or RoCE adapter, or its driver is not loaded"
)
IB = HOST + "infiniband_"
_IB_TRAFFIC = {
    "port_xmit_data": (IB + "transmit_bytes_total", 4),
    "port_rcv_data": (IB + "receive_bytes_total", 4),
    "port_xmit_packets": (IB + "transmit_packets_total", 1),
    "port_rcv_packets": (IB + "receive_packets_total", 1),
    "port_xmit_wait": (IB + "transmit_waits_total", 1),
}
_IB_ERRORS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
}
"""Counters and their width in bits."""
_IB_HARDWARE_ERRORS = (
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "out_of_buffer"),
    *("duplicate_request", "implied_nak_seq_err", "req_cqe_error", "resp_cqe_error", "rx_icrc_encapsulated"),
    *("roce_slow_restart", "roce_adp_retrans", "roce_adp_retrans_to", "req_transport_retries_exceeded"),
)
"""Of Mellanox/NVIDIA adapters, in hw_counters."""
_IB_CONGESTION = ("np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored")
_ACTIVE = 4
"""State of a port that carries traffic."""
_IB_RATE = re.compile(r"([\d.]+) Gb/sec", re.ASCII)


def parse_port_state(text: str) -> tuple[int, str]:
    """Number and word of an InfiniBand port's "4: ACTIVE", in lower case; 0 and the text where it is something else."""
    number, colon, word = text.strip().partition(":")
    if colon and number.isascii() and number.isdecimal():
        return int(number), word.strip().lower()
    return 0, text.strip().lower()


def parse_port_rate(text: str) -> float | None:
    """Bytes per second of an InfiniBand port's "400 Gb/sec (4X NDR)", None where the text is something else."""
    match = _IB_RATE.match(text.strip())
    try:
        return float(match[1]) * 1e9 / 8 if match else None
    except ValueError:  # "1.2.3 Gb/sec"
        return None


def is_port_counter_saturated(value: int, width: int) -> bool:
    """Whether a counter of an InfiniBand port is at the end of its width, where it stops."""
    return value == (1 << width) - 1


def read_infiniband(files: Files, into: ReadingsBuilder) -> None:
    """Read all InfiniBand ports; without adapters one missing metric."""
    devices = files.names(_IB_ROOT) or _NO_ADAPTER
    if isinstance(devices, NoValue):
        into.add(IB + "up", _NO_ADAPTER if devices.reason is MissingReason.NOT_SUPPORTED else devices)
        return
    for device in devices:
        ports = files.names(f"{_IB_ROOT}/{device}/ports")
        if isinstance(ports, NoValue):
            into.add(IB + "up", ports, device=device)
            continue
        for port in ports:
            folder = f"{_IB_ROOT}/{device}/ports/{port}"
            texts = {name: files.read(f"{folder}/{name}") for name in ("state", "phys_state", "link_layer", "rate")}
            known = {name: "" if isinstance(text, NoValue) else text.strip() for name, text in texts.items()}
            state, rate = texts["state"], texts["rate"]
            is_up = state if isinstance(state, NoValue) else int(parse_port_state(state)[0] == _ACTIVE)
            into.add(IB + "up", is_up, device=device, port=port)
            into.add(
                IB + "info",
                1,
                device=device,
                port=port,
                state=parse_port_state(known["state"])[1],
                physical_state=parse_port_state(known["phys_state"])[1],
                link_layer=known["link_layer"].lower(),
                rate=known["rate"],
            )
            speed = rate if isinstance(rate, NoValue) else parse_port_rate(rate)
            if speed is None:
                speed = NoValue(MissingReason.UNREADABLE, f"/{folder}/rate: {known['rate']!r} is not a rate")
            into.add(IB + "speed_bytes_per_second", speed, device=device, port=port)
            _read_port_counters(files, into, device, port)
            _read_hardware_counters(files, into, device, port)


def _read_port_counters(files: Files, into: ReadingsBuilder, device: str, port: str) -> None:
    folder = f"{_IB_ROOT}/{device}/ports/{port}/counters"
    for name, (metric, scale) in _IB_TRAFFIC.items():
        value = files.number(f"{folder}/{name}")
        if isinstance(value, int) and is_port_counter_saturated(value, 32):
            value = NoValue(MissingReason.UNREADABLE, f"/{folder}/{name}: stopped at the end of its 32 bits")
        into.add(metric, value if isinstance(value, NoValue) else value * scale, device=device, port=port)
    for name, width in _IB_ERRORS.items():
        value = files.number(f"{folder}/{name}")
        into.add(IB + "errors_total", value, device=device, port=port, kind=name.lower())
        if isinstance(value, int) and is_port_counter_saturated(value, width):
            message = f"{device} port {port}: {name} stopped at {value}, the end of its width; clear it (perfquery -R)"
            into.note("counter_full", message, device=device, port=port, kind=name.lower())


def _read_hardware_counters(files: Files, into: ReadingsBuilder, device: str, port: str) -> None:
    """Counters of the adapter's driver. Each driver has others, so those that are not there are not missing."""
    folder = f"{_IB_ROOT}/{device}/ports/{port}/hw_counters"
    for names, metric in ((_IB_HARDWARE_ERRORS, "errors_total"), (_IB_CONGESTION, "congestion_total")):
        for name in names:
            value = files.number(f"{folder}/{name}")
            if isinstance(value, int):
                into.add(IB + metric, value, device=device, port=port, kind=name)
