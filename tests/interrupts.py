"""Restored SIGINT of child processes: a test run started in the background of a shell ignores it."""

from __future__ import annotations

import signal


def default_interrupt() -> None:
    """For Popen's preexec_fn: ignored signals stay ignored across exec."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
