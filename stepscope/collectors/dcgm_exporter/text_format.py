"""Prometheus text format as dcgm-exporter writes it: samples of a page, and DCGM's blank values.

dcgm-exporter writes label values without escapes: a job name with a quote in it breaks the format. Such a line is lost,
the rest of the page is not. Older exporters print DCGM's words for "no value" as if they were values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.readings import MissingReason

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_LINE = re.compile(rf"({_NAME})\s*(?:\{{(.*)\}})?\s+(\S.*?)\s*", re.ASCII)
_STRICT_LABELS = re.compile(rf'\s*(?:{_LABEL}\s*=\s*"(?:[^"\\]|\\.)*"\s*(?:,\s*|$))*', re.ASCII)
_STRICT_LABEL = re.compile(rf'({_LABEL})\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)
_LOOSE_BORDER = re.compile(rf'"\s*,\s*(?={_LABEL}=")', re.ASCII)
_LOOSE_LABEL = re.compile(rf'\s*({_LABEL})="(.*)', re.ASCII | re.DOTALL)
_ESCAPE = re.compile(r'\\([\\"n])')
_ESCAPED = {"\\": "\\", '"': '"', "n": "\n"}
_MAX_LINE = 65536
"""Characters. Longer lines are not samples, and would take long to match."""
_NUMBER = re.compile(r"([-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|[iI]nf|[nN]a[nN]))(?:\s+(-?[0-9]{1,18}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sample:
    """One line.

    Attributes:
        name: of the field.
        labels: as the page has them; of a name that occurs twice, the first. Lines with the same labels share them.
        text: the value as written; not a number where a field is a text.
        time_ns: the line's own time, ns since the epoch; None without, as dcgm-exporter writes it.
    """

    name: str
    labels: Mapping[str, str]
    text: str
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be read.

    Attributes:
        number: counted from 1.
        text: its beginning.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """All lines of a page.

    Attributes:
        samples: in their order.
        bad_lines: the others, but for comments.
    """

    samples: tuple[Sample, ...]
    bad_lines: tuple[BadLine, ...]


def parse_page(text: str) -> Page:
    """Read a page. Raises nothing, whatever the text.

    A last line without its end is a bad one: where a page was cut, 123 would pass for 1234.
    """
    samples, bad_lines = [], []
    labels_by_text: dict[str, Mapping[str, str] | None] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        readable = number < len(lines) and len(stripped) <= _MAX_LINE
        sample = _parse_sample(stripped, labels_by_text) if readable else None
        if sample is None:
            bad_lines.append(BadLine(number, stripped[:80]))
        else:
            samples.append(sample)
    return Page(tuple(samples), tuple(bad_lines))


def _parse_sample(line: str, labels_by_text: dict[str, Mapping[str, str] | None]) -> Sample | None:
    """The sample of a line, None where it is not one; the labels of the lines before are not parsed again."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    name, body, value = match.groups()
    key = body or ""
    if key not in labels_by_text:
        labels_by_text[key] = _parse_labels(key) if key else {}
    labels = labels_by_text[key]
    if labels is None:
        return None
    number = _NUMBER.fullmatch(value)
    if number is None:
        return None if body is None else Sample(name, labels, value)  # "garbage in words" is not a sample
    text, milliseconds = number.groups()
    return Sample(name, labels, text, None if milliseconds is None else int(milliseconds) * 1_000_000)


def _parse_labels(body: str) -> dict[str, str] | None:
    """The labels between the braces, or None where the text is not labels."""
    if _STRICT_LABELS.fullmatch(body):
        pairs = [(name, _unescaped(value)) for name, value in _STRICT_LABEL.findall(body)]
    else:
        pairs = []
        parts = _LOOSE_BORDER.split(body.rstrip().removesuffix(","))
        parts[-1] = parts[-1].rstrip()
        if not parts[-1].endswith('"'):
            return None
        parts[-1] = parts[-1][:-1]
        for part in parts:
            match = _LOOSE_LABEL.fullmatch(part)
            if match is None:
                return None
            pairs.append((match[1], match[2]))
    labels: dict[str, str] = {}
    for name, value in pairs:
        labels.setdefault(name, value)
    return labels


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED[match[1]], value) if "\\" in value else value


_INT32, _INT64 = 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0
_FP64 = 140737488355328
"""dcgmlib/dcgm_structs.h: blank; + 1: not found; + 2: not supported; + 3: not permissioned."""
_BLANK_REASONS = (
    NoValue(MissingReason.UNREADABLE, "DCGM has no value (blank)"),
    NoValue(MissingReason.UNREADABLE, "DCGM did not find it"),
    NoValue(MissingReason.NOT_SUPPORTED, "DCGM says: not supported"),
    NoValue(MissingReason.NO_PERMISSION, "DCGM says: no permission"),
)
_BLANK_WORDS = {
    "<<<NULL>>>": _BLANK_REASONS[0],
    "<<<NOT_FOUND>>>": _BLANK_REASONS[1],
    "<<<NOT_SUPPORTED>>>": _BLANK_REASONS[2],
    "<<<NOT_PERM>>>": _BLANK_REASONS[3],
}
_BLANK_NUMBERS = {base + kind: _BLANK_REASONS[kind] for base in (_INT32, _INT64, _FP64) for kind in range(4)}
_ROUNDED_BLANK = 9.2233720368547e18
"""Proxies in front of the exporter print int64 blanks as 9223372036854776000 or 9.223372036854776e+18."""
_MAX_DIGITS = 30
"""Of a blank; Python refuses to convert thousands of them."""


def parse_value(text: str) -> float | NoValue:
    """The number of a sample, or why it has none.

    Only the blanks themselves are dropped, not all that is larger: NVLink's bytes pass the blank of doubles, 1.4e14,
    within minutes.
    """
    if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS:
        blank = _BLANK_NUMBERS.get(int(text))
        if blank is not None:
            return blank
    elif text in _BLANK_WORDS:
        return _BLANK_WORDS[text]
    try:
        value = float(text.replace("_", "?"))  # Python takes 1_000 for a number
    except ValueError:
        return NoValue(MissingReason.UNREADABLE, f"the page says {text[:40]!r}")
    if not math.isfinite(value):
        return NoValue(MissingReason.UNREADABLE, f"the page says {text[:40]}")
    if value >= _ROUNDED_BLANK:
        return _BLANK_REASONS[0]
    return _BLANK_NUMBERS.get(int(value), value) if value >= _INT32 and value.is_integer() else value


def parse_label_text(text: str) -> str:
    """The text of a label, empty where DCGM has none."""
    return "" if text in _BLANK_WORDS else text
