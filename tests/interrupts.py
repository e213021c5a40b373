"""How does a child process get its SIGINT back? A test run that a shell started in the background ignores it."""

from __future__ import annotations

import signal


def default_interrupt() -> None:
    """For Popen's preexec_fn: ignored signals stay ignored across exec."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
