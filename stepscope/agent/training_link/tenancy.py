"""Tenancy of the training socket: whose run a name is, and how much of the agent one user may take.

Pure: no I/O, time is an argument. A user is the uid that the kernel reports of a connection (SO_PEERCRED); root and the
agent's own user are users like all others. Nothing that a process sends about itself decides whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from stepscope.core.metrics.readings import Reading

_KEPT_SECONDS = 90.0
"""After its last connection a user keeps a name: training reconnects within a minute, see the link's retries."""
_MAX_CLAIMS_OF_USER = 256
_NAME_WITH_UID = re.compile(r"(\d+|\?):")


@dataclass(slots=True)
class _Claim:
    since: float
    num_connections: int = 0
    left_at: float = 0.0

    def is_over(self, now: float) -> bool:
        return self.num_connections == 0 and now - self.left_at > _KEPT_SECONDS


@dataclass(slots=True)
class RunClaims:
    """Names of runs, and the users that speak of them. Bounded; not thread-safe.

    A name belongs to the user that has used it for longest without a break. A run of that name of any other user is
    kept apart under `UID:NAME`, and nobody can take such a name for a run of another user.
    """

    _claims: dict[str, dict[int | None, _Claim]] = field(default_factory=dict)

    def connect(self, uid: int | None, run: str, now: float) -> None:
        """A process of this user has introduced itself as one of this run."""
        self._forget(now)
        claims = self._claims.setdefault(run, {})
        if uid not in claims:
            self._make_room(uid)
            claims = self._claims.setdefault(run, {})
            claims[uid] = _Claim(now)
        claims[uid].num_connections += 1

    def disconnect(self, uid: int | None, run: str, now: float) -> None:
        """Its connection has ended."""
        claim = self._claims[run][uid]
        claim.num_connections -= 1
        claim.left_at = now

    def since(self, uid: int | None, run: str) -> float:
        """When this user began to use the name; it must be connected."""
        return self._claims[run][uid].since

    def owner(self, run: str, now: float) -> int | None:
        """The user to which the name belongs; None also where nobody uses it."""
        claims = {uid: claim for uid, claim in self._claims.get(run, {}).items() if not claim.is_over(now)}
        return min(claims, key=lambda uid: claims[uid].since, default=None)

    def shown_name(self, uid: int | None, run: str, now: float) -> str:
        """The name under which this user's run is known to others."""
        is_theirs = self.owner(run, now) == uid and _NAME_WITH_UID.match(run) is None
        return run if is_theirs else f"{'?' if uid is None else uid}:{run}"

    def num_claims(self, uid: int | None) -> int:
        return sum(uid in claims for claims in self._claims.values())

    def _forget(self, now: float) -> None:
        for run, claims in list(self._claims.items()):
            for uid in [uid for uid, claim in claims.items() if claim.is_over(now)]:
                del claims[uid]
            if not claims:
                del self._claims[run]

    def _make_room(self, uid: int | None) -> None:
        """Forget the name that this user left first, where it has left too many."""
        left = [
            (claims[uid].left_at, run)
            for run, claims in self._claims.items()
            if uid in claims and claims[uid].num_connections == 0
        ]
        if left and self.num_claims(uid) >= _MAX_CLAIMS_OF_USER:
            _, run = min(left)
            del self._claims[run][uid]
            if not self._claims[run]:
                del self._claims[run]


_Uid = TypeVar("_Uid", bound=int | None)
MAX_SERIES = 4000
"""Of all users: a page with more than `sample_limit` would be lost whole, with every GPU on it."""


def within_series_budget(
    of_ranks: Mapping[_Uid, Sequence[tuple[Sequence[Reading], Sequence[Reading]]]], series_of_user: int
) -> tuple[list[Reading], dict[_Uid, int]]:
    """Readings of training processes within the budget of their users, and how many of each user are left out.

    Args:
        of_ranks: of each user's processes the readings that all have, and those whose number is theirs to choose. The
            latter are left out first, those of the last processes before those of the first.
    """
    budget = min(series_of_user, MAX_SERIES // max(len(of_ranks), 1))
    kept: list[Reading] = []
    left_out: dict[_Uid, int] = {}
    for uid, ranks in of_ranks.items():
        readings = [*_flat(common for common, _ in ranks), *_flat(own for _, own in ranks)]
        kept += readings[:budget]
        if len(readings) > budget:
            left_out[uid] = len(readings) - budget
    return kept, left_out


def _flat(parts: Iterable[Sequence[Reading]]) -> list[Reading]:
    return [reading for part in parts for reading in part]
