"""Which rows are of these categories, and which of them have a name that is wanted? Sorted once, then picked.

The analysis asks some fifty such questions of columns with millions of rows, mostly for names that are rare, or that a
trace does not have at all (a checkpoint, a wait for an event): none of them passes over the rows again.
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

    __slots__ = ("_category", "_first", "_kinds", "_name", "_names", "_of_categories", "_rows")

    def __init__(
        self, category: npt.NDArray[np.signedinteger], name: npt.NDArray[np.signedinteger], names: Sequence[str]
    ) -> None:
        self._category = category
        self._name = name
        self._names = names
        self._of_categories: dict[tuple[int, ...], Rows] = {}
        self._kinds: dict[int, list[int]] | None = None

    def of(self, categories: tuple[int, ...]) -> Rows:
        """Indices of the rows in any of the categories, ascending; shared by all who ask, so not to be written."""
        rows = self._of_categories.get(categories)
        if rows is None:
            wanted = np.zeros(len(self._category), np.bool_)
            for category in categories:
                wanted |= self._category == category
            rows = self._of_categories[categories] = np.flatnonzero(wanted)
            rows.flags.writeable = False
        return rows

    def named(self, categories: tuple[int, ...], wanted: Callable[[str], object]) -> Rows:
        """Indices of the rows in any of the categories whose name is wanted, ascending; each name is asked once."""
        if self._kinds is None:
            self._kinds = self._sort()
        kinds = [kind for category in categories for kind in self._kinds.get(category, ())]
        names = {kind % len(self._names) for kind in kinds}
        found = {name for name in names if wanted(self._names[name])}
        parts = [
            self._rows[self._first[kind] : self._first[kind + 1]] for kind in kinds if kind % len(self._names) in found
        ]
        return np.sort(np.concatenate(parts), kind="stable").astype(np.intp) if parts else np.empty(0, np.intp)

    def _sort(self) -> dict[int, list[int]]:
        """Sort the rows by kind, category * number of names + name; the kinds that there are, by category."""
        num_names = max(len(self._names), 1)
        kind = self._category.astype(np.int64) * num_names + self._name
        num_rows = np.bincount(kind)
        kinds = np.flatnonzero(num_rows)
        number = np.cumsum(num_rows > 0) - 1
        # mostly a few hundred kinds: in two bytes they are sorted by counting
        width = np.int16 if len(kinds) < 2**15 else np.int32
        self._rows = np.argsort(number.astype(width)[kind], kind="stable").astype(np.int32)
        self._first = np.concatenate(([0], np.cumsum(num_rows)))
        by_category: dict[int, list[int]] = {}
        for one in kinds.tolist():
            by_category.setdefault(one // num_names, []).append(one)
        return by_category
