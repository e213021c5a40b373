"""How does systemd know that the agent is ready and goes on? By sd_notify's datagrams, where the unit asks for them."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress

_log = logging.getLogger(__name__)


class Systemd:
    """Tells the service manager; without one it does nothing."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """`environment`: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID as systemd sets them."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        for_us = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        microseconds = environment.get("WATCHDOG_USEC", "") if for_us else ""
        self._seconds = int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0

    def ready(self, status: str) -> None:
        """The first round is over."""
        self._tell(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """The end has begun."""
        self._tell("STOPPING=1")

    def watch(self, progress: Callable[[], tuple[Hashable, ...]], stop: threading.Event) -> None:
        """Wait until `stop` is set, and say again and again that the agent goes on, as long as it does.

        Args:
            progress: counts that all change while all goes on; one that stands still lets the watchdog bite.
            stop: set it to end.
        """
        if not self._address or not self._seconds:
            stop.wait()
            return
        before: tuple[Hashable, ...] = ()
        while not stop.wait(self._seconds / 4):
            now = progress()
            if not before or all(one != other for one, other in zip(now, before, strict=True)):
                self._tell("WATCHDOG=1")
                before = now

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, suppress(OSError):
            sender.setblocking(False)
            sender.sendto(message.encode(errors="replace"), address)
            return
        _log.debug("the service manager does not listen")
