"""Where may the agent listen? On this machine's own address, unless it is told that others may ask."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from stepscope.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port; port 0 takes a free one, an empty host is every address of the machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(text: str, *, insecure: bool = False, keeps_others_out: bool = False) -> Address:
    """The address that a setting names.

    Args:
        text: HOST:PORT, with an IPv6 address in brackets.
        insecure: allow one that other machines can reach although nobody is asked who they are.
        keeps_others_out: they are asked, and what they say is encrypted.

    Raises:
        UsageError: it is none, or other machines can reach it.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else -1
    if not colon or not 0 <= number <= 65535 or (":" in host and not is_bracketed):
        raise UsageError("is no HOST:PORT", where=text, what_next="write it as 127.0.0.1:9455 or [::1]:9455")
    address = Address(host[1:-1] if is_bracketed else host, number)
    if not (insecure or keeps_others_out) and not _is_loopback(address.host):
        raise UsageError(
            "other machines can reach this address and nobody would be asked who they are",
            where=text,
            what_next="give TLS and users with --web-config-file, or listen on 127.0.0.1, or allow it with --insecure",
        )
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
