"""How are the InfiniBand and RoCE ports, and what do they carry, lose and wait for?

`port_xmit_data` counts words of 4 bytes. Old counters stop at the end of their width and stay there; the InfiniBand
specification gives the widths (PortCounters, 16.1.3.5), Linux reads 64 bits of the data counters where the adapter has
them (drivers/infiniband/core/sysfs.c).
"""

from __future__ import annotations

import re

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.gathering import Gathering
from stepscope.core.host_metrics import HOST
from stepscope.core.readings import MissingReason

_ROOT = "sys/class/infiniband"
IB = HOST + "infiniband_"
_TRAFFIC = {
    "port_xmit_data": (IB + "transmit_bytes_total", 4),
    "port_rcv_data": (IB + "receive_bytes_total", 4),
    "port_xmit_packets": (IB + "transmit_packets_total", 1),
    "port_rcv_packets": (IB + "receive_packets_total", 1),
    "port_xmit_wait": (IB + "transmit_waits_total", 1),
}
_ERRORS = {
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
_HARDWARE_ERRORS = (
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "out_of_buffer"),
    *("duplicate_request", "implied_nak_seq_err", "req_cqe_error", "resp_cqe_error", "rx_icrc_encapsulated"),
    *("roce_slow_restart", "roce_adp_retrans", "roce_adp_retrans_to", "req_transport_retries_exceeded"),
)
"""Of Mellanox/NVIDIA adapters, in hw_counters."""
_CONGESTION = ("np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored")
_RATE = re.compile(r"([\d.]+) Gb/sec", re.ASCII)


def parse_state(text: str) -> tuple[int, str]:
    """Number and word of "4: ACTIVE", in lower case; 0 and the text where it is something else."""
    number, colon, word = text.strip().partition(":")
    if colon and number.isascii() and number.isdecimal():
        return int(number), word.strip().lower()
    return 0, text.strip().lower()


def parse_rate(text: str) -> float | None:
    """Bytes per second of "400 Gb/sec (4X NDR)", None where it tells none."""
    match = _RATE.match(text.strip())
    try:
        return float(match[1]) * 1e9 / 8 if match else None
    except ValueError:  # "1.2.3 Gb/sec"
        return None


def is_full(value: int, width: int) -> bool:
    """Whether a counter stands at the end of its width, where it stays."""
    return value == (1 << width) - 1


def read_infiniband(files: Files, into: Gathering) -> None:
    """Read all ports; without adapters one line about it."""
    devices = files.names(_ROOT)
    if isinstance(devices, Unread) or not devices:
        detail = f"/{_ROOT}: no InfiniBand or RoCE adapter, or its driver is not loaded"
        reason = MissingReason.NOT_INSTALLED
        if isinstance(devices, Unread) and devices.reason is not MissingReason.NOT_SUPPORTED:
            reason, detail = devices.reason, devices.detail
        into.miss([IB + "up"], Unread(reason, detail))
        return
    for device in devices:
        ports = files.names(f"{_ROOT}/{device}/ports")
        if isinstance(ports, Unread):
            into.miss([IB + "up"], ports, device=device)
            continue
        for port in ports:
            _read_state(files, into, device, port)
            _read_counters(files, into, device, port)
            _read_hardware(files, into, device, port)


def _read_state(files: Files, into: Gathering, device: str, port: str) -> None:
    folder = f"{_ROOT}/{device}/ports/{port}"
    texts = {name: files.read(f"{folder}/{name}") for name in ("state", "phys_state", "link_layer", "rate")}
    known = {name: "" if isinstance(text, Unread) else text.strip() for name, text in texts.items()}
    state = texts["state"]
    if isinstance(state, Unread):
        into.miss([IB + "up"], state, device=device, port=port)
    else:
        into.add(IB + "up", 1 if parse_state(state)[0] == 4 else 0, device=device, port=port)
    into.add(
        IB + "info",
        1,
        device=device,
        port=port,
        state=parse_state(known["state"])[1],
        physical_state=parse_state(known["phys_state"])[1],
        link_layer=known["link_layer"].lower(),
        rate=known["rate"],
    )
    rate = parse_rate(known["rate"])
    if rate is not None:
        into.add(IB + "speed_bytes_per_second", rate, device=device, port=port)
    else:
        why = texts["rate"] if isinstance(texts["rate"], Unread) else None
        detail = f"/{folder}/rate: {known['rate']!r} is no rate"
        into.miss(
            [IB + "speed_bytes_per_second"],
            why or Unread(MissingReason.UNREADABLE, detail),
            device=device,
            port=port,
        )


def _number(files: Files, path: str) -> int | Unread:
    text = files.read(path)
    if isinstance(text, Unread):
        return text
    word = text.strip()
    if not (word.isascii() and word.isdecimal()):
        return Unread(MissingReason.UNREADABLE, f"/{path}: {word[:40]!r} is no number")
    return int(word)


def _read_counters(files: Files, into: Gathering, device: str, port: str) -> None:
    folder = f"{_ROOT}/{device}/ports/{port}/counters"
    for name, (metric, scale) in _TRAFFIC.items():
        value = _number(files, f"{folder}/{name}")
        if isinstance(value, int) and is_full(value, 32):
            value = Unread(MissingReason.UNREADABLE, f"/{folder}/{name}: stands still at the end of its 32 bits")
        if isinstance(value, Unread):
            into.miss([metric], value, device=device, port=port)
        else:
            into.add(metric, value * scale, device=device, port=port)
    for name, width in _ERRORS.items():
        value = _number(files, f"{folder}/{name}")
        if isinstance(value, Unread):
            into.miss([IB + "errors_total"], value, device=device, port=port, kind=name.lower())
            continue
        into.add(IB + "errors_total", value, device=device, port=port, kind=name.lower())
        if is_full(value, width):
            message = (
                f"{device} port {port}: {name} stands still at {value}, the end of its width; clear it (perfquery -R)"
            )
            into.note("counter_full", message, device=device, port=port, kind=name.lower())


def _read_hardware(files: Files, into: Gathering, device: str, port: str) -> None:
    """What the adapter's driver counts beside; each has others, so that those that are not there are not missed."""
    folder = f"{_ROOT}/{device}/ports/{port}/hw_counters"
    for names, metric in ((_HARDWARE_ERRORS, "errors_total"), (_CONGESTION, "congestion_total")):
        for name in names:
            value = _number(files, f"{folder}/{name}")
            if isinstance(value, int):
                into.add(IB + metric, value, device=device, port=port, kind=name)
