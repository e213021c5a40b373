"""Which store do the ranks of the job share? The one that torch.distributed was initialised with."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any


def job_store() -> Any:
    """torch.distributed's default store; None before it is initialised, and in a torch that hides it."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    find = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def own_connection(store: Any, patience: timedelta) -> Any:
    """The same store over a connection of its own, so that a wait on one thread never holds another up.

    A torch that cannot make one (before 2.7) gives the store itself.

    Raises:
        RuntimeError: the store does not answer.
    """
    clone = getattr(store, "clone", None)
    if clone is None:
        return store
    own = clone()
    own.set_timeout(patience)
    return own
