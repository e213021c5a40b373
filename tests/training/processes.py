"""Start of training processes that are to be killed, without importing torch for each."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.core.process import about_to_fork


@dataclass(frozen=True, slots=True)
class Training:
    """A forked process that trains and tells what it wants to.

    Attributes:
        told: where its words come out.
    """

    process_id: int
    told: int

    def wait_for(self, word: str) -> None:
        """Until the process has told `word`, or has ended."""
        text = ""
        while word not in text:
            part = os.read(self.told, 4096).decode()
            assert part, f"ended before {word!r}: {text!r}"
            text += part

    def end(self) -> int:
        """The exit status once it has ended: negative for a signal."""
        _, status = os.waitpid(self.process_id, 0)
        os.close(self.told)
        return os.waitstatus_to_exitcode(status)


def fork(train: Callable[[Callable[[str], None]], object]) -> Training:
    """Run `train` in a child process; it is given a function that tells a word."""
    read_end, write_end = os.pipe()
    with about_to_fork():
        process_id = os.fork()
    if process_id:
        os.close(write_end)
        return Training(process_id, read_end)
    status = 70
    try:
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # those that it has made for its parent are not here
        os.close(read_end)
        signal.set_wakeup_fd(-1)  # a browser's tests before this one left an event loop that listens to signals
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which a test run that survives its terminal ignores
        train(lambda word: void(os.write(write_end, word.encode())))
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def void(_: object) -> None:
    """Nothing, of something."""
