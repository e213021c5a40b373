"""Which rows are of these categories, and which of them have a name that is wanted? Looked for once, then kept.

The analysis asks some fifty such questions of columns with millions of rows. Most are for names that a trace does not
have at all (a checkpoint, a wait for an event): the names of each category are few, so these cost no pass over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]


class RowIndex:
    """The rows of one trace, by category and name.

    Args:
        category, name: by row, small whole numbers; `name` is an index into `names`.
        names: the texts.
    """

    __slots__ = ("_category", "_name", "_names", "_of_categories", "_seen")

    def __init__(
        self, category: npt.NDArray[np.signedinteger], name: npt.NDArray[np.signedinteger], names: Sequence[str]
    ) -> None:
        self._category = category
        self._name = name
        self._names = names
        self._of_categories: dict[tuple[int, ...], Rows] = {}
        self._seen: dict[tuple[int, ...], list[int]] = {}

    def of(self, categories: tuple[int, ...]) -> Rows:
        """Indices of the rows in any of the categories, ascending; shared by all who ask, so not to be written."""
        rows = self._of_categories.get(categories)
        if rows is None:
            rows = np.flatnonzero(self._is_of(categories))
            rows.flags.writeable = False
            self._of_categories[categories] = rows
        return rows

    def named(self, categories: tuple[int, ...], wanted: Callable[[str], object]) -> Rows:
        """Indices of the rows in any of the categories whose name is wanted, ascending; each name is asked once."""
        found = [name for name in self._names_of(categories) if wanted(self._names[name])]
        if not found:
            return np.empty(0, np.intp)
        is_wanted = np.zeros(len(self._names), np.bool_)
        is_wanted[found] = True
        return np.flatnonzero(self._is_of(categories) & is_wanted[self._name])

    def _is_of(self, categories: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        wanted = np.zeros(len(self._category), np.bool_)
        for category in categories:
            wanted |= self._category == category
        return wanted

    def _names_of(self, categories: tuple[int, ...]) -> list[int]:
        """The names that occur in these categories."""
        names = self._seen.get(categories)
        if names is None:
            is_seen = np.zeros(len(self._names), np.bool_)
            is_seen[self._name[self._is_of(categories)]] = True
            names = self._seen[categories] = np.flatnonzero(is_seen).tolist()
        return names
