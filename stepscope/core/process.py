"""Process-wide tools: processes and forks, priority, parents' ends, C accelerators, worker thread, patched functions.

The C accelerators change speed, never results.

Garbage that the parent has not collected before a fork, such as a process group, may need threads that the child does
not have: if the child collected it, its destructor would wait for them forever.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # half a MB, which the agent's reading process does not need
    import logging
    import queue


@contextmanager
def about_to_fork() -> Iterator[None]:
    """Core: freeze the garbage collector around any fork, so that the child never collects the parent's objects.

    The parent unfreezes afterwards, unless its own code had frozen objects before.
    """
    parent, is_frozen = os.getpid(), gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if os.getpid() == parent and not is_frozen:
            gc.unfreeze()


_PR_SET_PDEATHSIG = 1


def signal_at_parent_death(number: int) -> None:
    """Have the kernel send this process a signal when its parent is gone, even killed; only Linux can."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def give_way() -> None:
    """Run only while nothing else wants the processor or the disk, and be the first to go when memory runs out."""
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # also idle for the disk, unless that is set
    for name, value in (("autogroup", "19"), ("oom_score_adj", "1000")):  # a session of its own is training's equal
        with suppress(OSError), open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(value)


_LOOK_SECONDS = 1.0


def end_after_parent(parent: int, seconds: float = 0.0) -> None:
    """End this process once its parent is gone and `seconds` more have passed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        time.sleep(seconds)
        os._exit(0)

    threading.Thread(target=watch, name="stepscope-parent", daemon=True).start()


_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Have all threads of this process allocate from one heap, where each would keep free memory of its own."""
    if sys.platform == "linux":
        import ctypes

        with suppress(AttributeError):  # a C library other than glibc
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


_COLLECTED_AFTER = 10_000
"""Objects made between collections: a round of readings is some hundreds, and is no garbage."""


def trim_memory() -> None:
    """Freeze what was loaded, which is never searched for cycles again, and return free memory to the kernel."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    return_free_memory()


def return_free_memory() -> None:
    """Return this process's free memory to the kernel."""
    if sys.platform == "linux":
        import ctypes

        with suppress(AttributeError):  # a C library other than glibc
            ctypes.CDLL(None).malloc_trim(0)


_RUN_MODULE = """
import sys
sys.path.append(sys.argv.pop(1))
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
_WHERE_STEPSCOPE_IS = os.path.realpath(__file__).removesuffix("/stepscope/core/process.py")
"""Without pathlib, which is half a MB."""


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Command that runs a module of stepscope in a process of its own.

    It is found where this process has it, after all else; nothing is imported from the working directory.
    """
    return (sys.executable, "-P", "-c", _RUN_MODULE, _WHERE_STEPSCOPE_IS, module, *arguments)


PURE_VARIABLE = "STEPSCOPE_PURE"
"""Environment: 1 turns the C accelerators off."""


def may_accelerate() -> bool:
    """Whether the C accelerators may be used in this process, by the environment."""
    return os.environ.get(PURE_VARIABLE, "0") in ("", "0")


_AFTER_ERROR_SECONDS = 0.25


class WorkerThread:
    """A worker thread of this process for posted calls. A context manager: it runs while it is open.

    Errors of calls and looks are logged, and the thread goes on.

    Args:
        look: called after each posted call and periodically; returns the seconds until the next time.
        name: of the thread, also in the log.
        log: takes the errors.
    """

    def __init__(self, look: Callable[[], float], *, name: str, log: logging.Logger) -> None:
        import queue

        self._look = look
        self._log = log
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> WorkerThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self.wake()
        self._thread.join()

    def post(self, call: Callable[[], object]) -> None:
        """Run `call` on the thread; from any thread, without waiting for it."""
        self._calls.put(call)

    def wake(self) -> None:
        """Look at once; from any thread."""
        self.post(lambda: None)

    def _run(self) -> None:
        from queue import Empty

        seconds = 0.0
        while not self._closing:
            try:
                call = self._calls.get(timeout=seconds)
            except Empty:
                call = None
            try:
                if call is not None:
                    call()
                seconds = self._look()
            except Exception:  # the thread's edge
                self._log.exception("%s failed; it continues", self._thread.name)
                time.sleep(_AFTER_ERROR_SECONDS)


class Patch:
    """A function of torch, or a method, replaced in this process by a wrapper of it, until `leave`.

    Args:
        wrapper: makes the function to call instead of the original, which it is given.

    Raises:
        AttributeError: the attribute does not exist, as in another version of torch.
    """

    def __init__(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner = owner
        self._name = name
        self._original = original = getattr(owner, name)
        self._is_own = name in vars(owner)  # else a class has it, or a base class
        self._ours = functools.wraps(original)(wrapper(original))
        setattr(owner, name, self._ours)

    def leave(self) -> None:
        """Put the original back, unless someone has wrapped ours in turn: it must do nothing of its own from now on."""
        if getattr(self._owner, self._name) is not self._ours:
            return
        if self._is_own:
            setattr(self._owner, self._name, self._original)
        else:
            delattr(self._owner, self._name)
