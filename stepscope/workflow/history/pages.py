"""Pages in Prometheus' text format, read into wide rows: the lines of a target are remembered from page to page.

One line that is not a sample makes the whole page invalid, as in Prometheus: what is beside it cannot be trusted. Of a
series that comes twice the first value stays. Times on samples are ignored: the time of the scrape counts. NaN is no
value. Series beyond the limits of a target are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from stepscope.store.history.questions import Labels

_NAME = re.compile(rb"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_PAIR = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|(?=\}))')
_CLOSE = re.compile(rb"[ \t]*\}[ \t]*")
_VALUE = re.compile(rb"([^ \t]+)(?:[ \t]+-?[0-9]{1,19})?[ \t]*")
_NUMBER = re.compile(rb"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE)
_PLAIN_NUMBERS = b"0123456789.eE+- "
_TYPE = re.compile(rb"^# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (gauge|counter)$", re.MULTILINE)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_MAX_SHOWN = 60
_HOUR_SECONDS = 3600.0
_SPARE_SERIES = 256
"""Series that are remembered beyond twice those of the page: some come and go."""
EXPORTED = "exported_"
"""Put before a label of a page whose name a label of the target has, as Prometheus does."""
UP, DURATION, SAMPLES = "up", "scrape_duration_seconds", "scrape_samples_scraped"
"""What is known of each scrape, by Prometheus' names, with the labels of the target."""
_OWN = (UP, DURATION, SAMPLES)


class NotAPageError(Exception):
    """An answer is not a page in Prometheus' text format; one line says why."""


@dataclass(frozen=True, slots=True)
class PageLimits:
    """Limits of one target, so that it cannot fill the history alone.

    Attributes:
        samples: of a page; one with more is refused.
        metrics: names over all pages.
        labels: of a series.
        text_length: characters of a name, and of the value of a label.
        new_series: that may begin within an hour.
    """

    samples: int = 50_000
    metrics: int = 2_000
    labels: int = 32
    text_length: int = 1_000
    new_series: int = 50_000


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of a page: the entities whose labels have the same names.

    Attributes:
        label_names: of each entity, sorted.
        metrics: of the columns, sorted.
        entities: labels of each row, those of the target among them.
        values: NaN where the page has none; shape (rows, columns).
    """

    label_names: tuple[str, ...]
    metrics: tuple[str, ...]
    entities: tuple[Labels, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PageSeries:
    """A series of a page with its value."""

    metric: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a target.

    Attributes:
        watched: series of the watched metrics.
        counters: of the metrics that the target has for the first time, by their TYPE lines: whether it is one.
        num_samples: on the page.
        num_duplicates: of these, series that came before on it.
        num_left_out: of these, series beyond the target's limits.
    """

    groups: tuple[RowGroup, ...]
    watched: tuple[PageSeries, ...] = ()
    counters: Mapping[str, bool] = field(default_factory=dict)
    num_samples: int = 0
    num_duplicates: int = 0
    num_left_out: int = 0


class PageReader:
    """Reads the pages of one target.

    Args:
        labels: of the target, sorted.
        watched: metrics whose series are wanted one by one.
    """

    def __init__(
        self, labels: Labels, *, watched: frozenset[str] = frozenset(), limits: PageLimits | None = None
    ) -> None:
        self._labels, self._watched = labels, watched
        self._limits = limits or PageLimits()
        self._slots: dict[bytes, int] = {}
        self._series: list[_Series] = []
        self._metrics: set[str] = set()
        self._typed: set[str] = set()
        self._budget = float(self._limits.new_series)
        self._budget_at: float | None = None
        self._last_slots: list[int] | None = None
        self._layout = _Layout((), self._labels, frozenset())

    def read(self, content: bytes, *, seconds: float, now: float) -> Page:
        """Read a page.

        Args:
            seconds: duration of the scrape.
            now: monotonic seconds.

        Raises:
            NotAPageError: it is not a page, or not a whole one.
        """
        if not content.endswith(b"\n"):
            raise NotAPageError("its page ends within a line" if content else "its page is empty")
        num_metrics = len(self._metrics)
        slots, texts, num_left_out = self._lines(content, now)
        num_samples = len(slots) + num_left_out
        if not num_samples:
            raise NotAPageError("its page has no sample")
        values = _numbers(texts)
        if slots != self._last_slots:
            slots = self._forget_old(slots)
            self._layout = _Layout([self._series[slot] for slot in slots], self._labels, self._watched)
            self._last_slots = slots
        counters = self._counters(content) if len(self._metrics) > num_metrics else {}
        return self._layout.page(values, (1.0, seconds, float(num_samples)), num_left_out, counters)

    def _counters(self, content: bytes) -> dict[str, bool]:
        kinds = {name.decode(): kind for name, kind in _TYPE.findall(content)}
        found = {metric: kinds[metric] == b"counter" for metric in self._metrics - self._typed if metric in kinds}
        self._typed |= self._metrics
        return found

    def failed(self, *, seconds: float) -> Page:
        """The rows of a scrape without a page."""
        return _Layout((), self._labels, frozenset()).page([], (0.0, seconds, 0.0))

    def _lines(self, content: bytes, now: float) -> tuple[list[int], list[bytes], int]:
        """Slot and value of each line with a sample, and how many more were left out."""
        slots, texts, num_left_out = [], [], 0
        known, most, num_known = self._slots, self._limits.samples, len(self._series)
        self._refill(now)
        new: _NewSeries | None = None
        try:
            for line in content.split(b"\n"):
                prefix, _, text = line.rpartition(b" ")
                slot = known.get(prefix)
                if slot is None:
                    if not line or line.startswith(b"#") or not line.strip(b" \t"):
                        continue
                    new = new or _NewSeries(self._series)
                    metric, pairs, text, is_plain = _parsed(line)
                    slot = self._slot(metric, pairs, new)
                    if slot is None:
                        num_left_out += 1
                    elif is_plain:
                        known[prefix] = slot
                if slot is not None:
                    slots.append(slot)
                    texts.append(text)
                if len(slots) + num_left_out > most:
                    raise NotAPageError(f"its page has more than {most:,} samples")
        except NotAPageError:
            del self._series[num_known:]
            self._slots = {prefix: slot for prefix, slot in known.items() if slot < num_known}
            raise
        return slots, texts, num_left_out

    def _slot(self, metric: str, pairs: Sequence[tuple[str, str]], new: _NewSeries) -> int | None:
        """Slot of a series whose line is not remembered; None beyond the limits."""
        limits = self._limits
        if len(pairs) > limits.labels or len(metric) > limits.text_length:
            return None
        if any(len(text) > limits.text_length for pair in pairs for text in pair):
            return None
        series = metric, new.shared(with_target_labels(pairs, self._labels))
        slot = new.slots.get(series)
        if slot is not None:
            return slot
        if self._budget < 1.0 or (metric not in self._metrics and len(self._metrics) >= limits.metrics):
            return None
        self._budget -= 1.0
        self._metrics.add(metric)
        slot = new.slots[series] = len(self._series)
        self._series.append(series)
        return slot

    def _refill(self, now: float) -> None:
        most = self._limits.new_series
        if self._budget_at is not None:
            self._budget = min(most, self._budget + max(0.0, now - self._budget_at) * most / _HOUR_SECONDS)
        self._budget_at = now

    def _forget_old(self, slots: list[int]) -> list[int]:
        """The slots after all series that this page does not have were forgotten, if they are too many."""
        if len(self._series) <= 2 * len(slots) + _SPARE_SERIES:
            return slots
        kept = {slot: place for place, slot in enumerate(dict.fromkeys(slots))}
        self._slots = {prefix: kept[slot] for prefix, slot in self._slots.items() if slot in kept}
        self._series = [self._series[slot] for slot in kept]
        return [kept[slot] for slot in slots]


_Series = tuple[str, Labels]


class _NewSeries:
    """Series that are known while lines of a page are new: equal labels, and pairs of them, are kept once."""

    def __init__(self, series: Sequence[_Series]) -> None:
        self.slots = {one: slot for slot, one in enumerate(series)}
        self._labels = {labels: labels for _, labels in series}
        self._pairs = {pair: pair for labels in self._labels for pair in labels}

    def shared(self, labels: Labels) -> Labels:
        """The same labels."""
        if (known := self._labels.get(labels)) is not None:
            return known
        made = self._labels[labels] = tuple([self._pairs.setdefault(pair, pair) for pair in labels])
        return made


def with_target_labels(pairs: Sequence[tuple[str, str]], target: Labels) -> Labels:
    """Labels of a series with those of its target, sorted; without empty ones, which Prometheus takes for absent."""
    merged = dict(target)
    page = {name: value for name, value in pairs if value}
    conflicts = sorted((merged.keys() & page.keys()), key=len)
    merged.update((name, value) for name, value in page.items() if name not in merged)
    for name in conflicts:
        new_name = EXPORTED + name
        while new_name in merged or new_name in page:
            new_name = EXPORTED + new_name
        merged[intern(new_name)] = page[name]
    return tuple(sorted(merged.items()))


def _parsed(line: bytes) -> tuple[str, list[tuple[str, str]], bytes, bool]:
    """Metric, labels and value of a line, and whether it is all before its last blank that stands for the series.

    Raises:
        NotAPageError: it is not a sample.
    """
    head = _NAME.match(line)
    if head is None:
        raise _bad(line)
    pairs: list[tuple[str, str]] = []
    place = head.end()
    if line[place : place + 1] == b"{":
        place += 1
        while (pair := _PAIR.match(line, place)) is not None:
            place = pair.end()
            pairs.append((_text(pair[1], line), _text(pair[2], line)))
        close = _CLOSE.match(line, place)
        if close is None:
            raise _bad(line)
        end, place = line.index(b"}", place) + 1, close.end()
    else:
        end = head.end(1)
        if place == end:
            raise _bad(line)
    value = _VALUE.fullmatch(line, place)
    if value is None or _NUMBER.fullmatch(value[1]) is None or len({name for name, _ in pairs}) < len(pairs):
        raise _bad(line)
    return intern(head[1].decode()), pairs, value[1], line == line[:end] + b" " + value[1]


def _text(content: bytes, line: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _bad(line) from None
    if "\\" in text:
        text = _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)
    return intern(text)


def _bad(line: bytes) -> NotAPageError:
    shown = line[:_MAX_SHOWN].decode(errors="replace").strip()
    return NotAPageError(f"its page has a line that is not a sample: {shown!r}")


def _numbers(texts: list[bytes]) -> list[float]:
    if b" ".join(texts).translate(None, _PLAIN_NUMBERS):
        return [_number(text) for text in texts]
    try:
        return list(map(float, texts))
    except ValueError:
        return [_number(text) for text in texts]


def _number(text: bytes) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise NotAPageError(
            f"its page has a value that is not a number: {text[:_MAX_SHOWN].decode(errors='replace')!r}"
        )
    return float(text)


class _Layout:
    """Where the values of a page with certain series go."""

    def __init__(self, series: Sequence[_Series], target: Labels, watched: frozenset[str]) -> None:
        all_series = [*((name, target) for name in _OWN), *series]
        by_names: dict[tuple[str, ...], dict[Labels, None]] = {}
        metrics: dict[tuple[str, ...], set[str]] = {}
        names_of: dict[Labels, tuple[str, ...]] = {}
        for metric, labels in all_series:
            names = names_of.get(labels)
            if names is None:
                names = names_of[labels] = tuple(name for name, _ in labels)
                by_names.setdefault(names, {})[labels] = None
            metrics.setdefault(names, set()).add(metric)
        self._groups: list[tuple[tuple[str, ...], tuple[str, ...], tuple[Labels, ...], slice]] = []
        row_at: dict[Labels, int] = {}
        column_of: dict[tuple[str, ...], dict[str, int]] = {}
        size = 0
        for names, entities in by_names.items():
            columns = tuple(sorted(metrics[names]))
            for row, labels in enumerate(entities):
                row_at[labels] = size + row * len(columns)
            column_of[names] = {metric: column for column, metric in enumerate(columns)}
            end = size + len(entities) * len(columns)
            self._groups.append((names, columns, tuple(entities), slice(size, end)))
            size = end
        places = [row_at[labels] + column_of[names_of[labels]][metric] for metric, labels in all_series]
        self._size, self._num_duplicates = size, len(places) - len(set(places))
        # numpy writes the values in order: backwards, the first of a series that comes twice stays
        self._places = np.array(places[::-1], np.intp)
        self._watched = [(place, *one) for place, one in enumerate(series) if one[0] in watched]

    def page(
        self,
        values: list[float],
        own: tuple[float, float, float],
        num_left_out: int = 0,
        counters: Mapping[str, bool] = MappingProxyType({}),
    ) -> Page:
        """The page with these values of its series."""
        flat = np.full(self._size, np.nan)
        num_samples = len(values)
        flat[self._places] = np.array([*own, *values])[::-1]
        groups = tuple(
            RowGroup(names, metrics, entities, flat[part].reshape(len(entities), len(metrics)))
            for names, metrics, entities, part in self._groups
        )
        seen: set[tuple[str, Labels]] = set()
        watched = []
        for place, metric, labels in self._watched:
            if (metric, labels) not in seen:
                seen.add((metric, labels))
                watched.append(PageSeries(metric, labels, values[place]))
        return Page(groups, tuple(watched), counters, num_samples + num_left_out, self._num_duplicates, num_left_out)
