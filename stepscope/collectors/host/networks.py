"""How much goes over each network interface, and what is lost?

Interfaces with hardware behind them; where there is none (a container has one end of a pair), all but the loopback.
"""

from __future__ import annotations

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.gathering import Gathering
from stepscope.core.host_metrics import HOST
from stepscope.core.readings import MissingReason

_COLUMNS = {
    0: HOST + "network_receive_bytes_total",
    1: HOST + "network_receive_packets_total",
    2: HOST + "network_receive_errors_total",
    3: HOST + "network_receive_drops_total",
    8: HOST + "network_transmit_bytes_total",
    9: HOST + "network_transmit_packets_total",
    10: HOST + "network_transmit_errors_total",
    11: HOST + "network_transmit_drops_total",
}
_UP, _SPEED = HOST + "network_up", HOST + "network_speed_bytes_per_second"
_CHANGES = HOST + "network_carrier_changes_total"
_TCP = {"OutSegs": HOST + "tcp_segments_sent_total", "RetransSegs": HOST + "tcp_retransmits_total"}


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


def read_networks(files: Files, into: Gathering) -> None:
    """Read the interfaces of the machine, or of our network namespace where the files are our own."""
    text = _read_net(files, "dev")
    if isinstance(text, Unread):
        into.miss(_COLUMNS.values(), text)
    else:
        interfaces = {name: numbers for name, numbers in parse_net_dev(text).items() if name != "lo"}
        real = [name for name in interfaces if files.exists(f"sys/class/net/{name}/device")]
        for name in real or list(interfaces):
            for column, metric in _COLUMNS.items():
                into.add(metric, interfaces[name][column], device=name)
            _read_link(files, into, name)
    text = _read_net(files, "snmp")
    if isinstance(text, Unread):
        into.miss(_TCP.values(), text)
        return
    counts = parse_snmp(text, "Tcp")
    for field, metric in _TCP.items():
        if counts.get(field, -1) >= 0:
            into.add(metric, counts[field])
        else:
            into.miss_line(metric, "proc/net/snmp", field)


def _read_net(files: Files, name: str) -> str | Unread:
    """In a container that has the machine's files mounted, /proc/net is the container's, process 1 is the machine's."""
    if files.is_mounted:
        text = files.read(f"proc/1/net/{name}")
        if not isinstance(text, Unread):
            return text
    return files.read(f"proc/net/{name}")


def _read_link(files: Files, into: Gathering, name: str) -> None:
    folder = f"sys/class/net/{name}"
    state = files.read(f"{folder}/operstate")
    if isinstance(state, Unread):
        into.miss([_UP], state, device=name)
    elif state.strip() == "unknown":  # drivers that do not tell, as of most virtual ones
        into.miss_line(_UP, f"{folder}/operstate", "a known state", device=name)
    else:
        into.add(_UP, 1 if state.strip() == "up" else 0, device=name)
    speed = files.read(f"{folder}/speed")
    if isinstance(speed, Unread):
        into.miss([_SPEED], speed, device=name)
    elif speed.strip().isdecimal() and int(speed) != 2**32 - 1:  # -1 where it is not known
        into.add(_SPEED, int(speed) * 1e6 / 8, device=name)
    else:
        why = Unread(MissingReason.NOT_SUPPORTED, f"/{folder}/speed: {speed.strip()}, the link is down or has no speed")
        into.miss([_SPEED], why, device=name)
    changes = files.read(f"{folder}/carrier_changes")
    if isinstance(changes, Unread):
        into.miss([_CHANGES], changes, device=name)
    elif changes.strip().isdecimal():
        into.add(_CHANGES, int(changes), device=name)
