"""How do all ranks come to capture the same steps, without a collective? They keep one list, in the job's own store.

The list's entry n is the key n. Whoever asks for a capture writes the first free entry by compare-and-set, so that
exactly one rank's proposal counts; everybody reads all entries in order, and so decides alike what goes with what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.core.agent_messages import CaptureRequest
from stepscope.core.agent_protocol import decode, encode

_MAX_ENTRIES = 1000


class CaptureLog:
    """This rank's view of the list.

    Args:
        store: with compare_set, check and get, as torch.distributed's stores have them.
        prefix: of the keys, the same on all ranks and unlike any other run's of the same job.

    Raises:
        RuntimeError, ValueError: from every method, when the store does not answer, or holds something else.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._next = 0

    def append(
        self, capture_id: str, propose: Callable[[], CaptureRequest | None], learn: Callable[[CaptureRequest], None]
    ) -> None:
        """Read what is new; then write what `propose` says, unless someone has written an entry of this id.

        Args:
            propose: is called again after each entry that someone else has written; None gives up.
            learn: is given every entry, in their order, the own one last.
        """
        while (proposal := propose()) is not None:
            if self._next >= _MAX_ENTRIES:
                raise RuntimeError(f"{_MAX_ENTRIES} captures have been asked for; a run has room for no more")
            entry = self._entry(self._store.compare_set(self._key, "", encode(proposal).decode()))
            learn(entry)
            if entry.id == capture_id:
                return

    def read(self, learn: Callable[[CaptureRequest], None]) -> None:
        """Read what is new; asks the store once when nothing is."""
        while self._store.check([self._key]):
            learn(self._entry(self._store.get(self._key)))

    @property
    def _key(self) -> str:
        return f"{self._prefix}/{self._next}"

    def _entry(self, line: bytes) -> CaptureRequest:
        entry = decode(bytes(line))
        if not isinstance(entry, CaptureRequest) or entry.start_step is None:
            raise ValueError(f"the store holds no capture at {self._key}")
        self._next += 1
        return entry
