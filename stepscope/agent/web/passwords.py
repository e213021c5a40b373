"""Is this the user's password? Checked by bcrypt, which is slow on purpose: never more of it than a share of a core.

What was checked is remembered by a digest with a key of this process, so that a scrape costs nothing after the first.
A user that there is not takes as long as one that there is.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum

from stepscope.agent.web.budget import Budget

_KEPT = 256
"""Right passwords, wrong ones and clients that are remembered, each."""
_WAIT_SECONDS = 2.0
_LONGEST_PASSWORD = 72
"""Bytes, bcrypt's own limit."""


class Answer(Enum):
    """What came of a check."""

    RIGHT = "right"
    WRONG = "wrong"
    BUSY = "busy"  # too many checks: ask again later


class Passwords:
    """Checks passwords; may be called by many threads.

    Args:
        clock: seconds, for the budgets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._secret = os.urandom(32)
        self._clock = clock
        self._lock = threading.Lock()
        self._one_check = threading.Lock()
        self._known: dict[bool, OrderedDict[bytes, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._all = Budget(3.0, 0.1, clock)
        self._clients: OrderedDict[str, Budget] = OrderedDict()

    def check(self, users: Mapping[str, bytes], user: str, password: bytes, client: str) -> Answer:
        """Whether the password is the user's.

        Args:
            users: bcrypt hashes by name; at least one.
            user, password: as given.
            client: who asks; each has a budget of its own, too.
        """
        hashed = users.get(user)
        is_user = hashed is not None
        if hashed is None:
            hashed = next(iter(users.values()))
        if len(password) > _LONGEST_PASSWORD or b"\0" in password:
            return Answer.WRONG
        digest = self._digest(user, hashed, password)
        known = self._remembered(digest)
        if known is not None:
            return known
        if not self._one_check.acquire(timeout=_WAIT_SECONDS):
            return Answer.BUSY
        try:
            known = self._remembered(digest)  # by another thread, while this one waited
            if known is not None:
                return known
            budgets = self._all, self._budget_of(client)
            if not all(budget.has_any() for budget in budgets):
                return Answer.BUSY
            begin = self._clock()
            is_right = _matches(password, hashed) and is_user
            for budget in budgets:
                budget.spend(self._clock() - begin)
        finally:
            self._one_check.release()
        self._remember(digest, is_right)
        return Answer.RIGHT if is_right else Answer.WRONG

    def _digest(self, user: str, hashed: bytes, password: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._secret)
        for part in (user.encode(errors="surrogateescape"), hashed, password):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _remembered(self, digest: bytes) -> Answer | None:
        with self._lock:
            for is_right, known in self._known.items():
                if digest in known:
                    known.move_to_end(digest)
                    return Answer.RIGHT if is_right else Answer.WRONG
        return None

    def _remember(self, digest: bytes, is_right: bool) -> None:
        with self._lock:
            known = self._known[is_right]  # apart: wrong ones never push right ones out
            known[digest] = None
            if len(known) > _KEPT:
                known.popitem(last=False)

    def _budget_of(self, client: str) -> Budget:
        budget = self._clients.setdefault(client, Budget(1.0, 0.02, self._clock))
        self._clients.move_to_end(client)
        if len(self._clients) > _KEPT:
            self._clients.popitem(last=False)
        return budget


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password, hashed)
    except ValueError:
        return False
