"""For how long did threads wait for CPUs, memory or disks? The kernel's pressure stall information (PSI).

"some": at least one thread waited. "full": all that were not idle did, so that no work was done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.gathering import Gathering
from stepscope.core.host_metrics import HOST
from stepscope.core.readings import MissingReason

RESOURCES = ("cpu", "memory", "io")
_LINE = re.compile(r"(some|full) avg10=(\d+\.\d+) avg60=(\d+\.\d+) avg300=(\d+\.\d+) total=(\d+)", re.ASCII)
_WINDOWS = ("10s", "60s", "300s")
_OFF = "the kernel has no PSI (before 4.20), or it is off: boot with psi=1"


@dataclass(frozen=True, slots=True)
class Pressure:
    """One line.

    Attributes:
        share: "some" or "full".
        ratios: share of the last 10, 60 and 300 s.
        seconds: in all.
    """

    share: str
    ratios: tuple[float, float, float]
    seconds: float


def parse_pressure(text: str) -> list[Pressure]:
    """Read a pressure file. Lines that make no sense are passed over."""
    matches = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [
        Pressure(match[1], (_ratio(match[2]), _ratio(match[3]), _ratio(match[4])), int(match[5]) / 1_000_000)
        for match in matches
        if match
    ]


def _ratio(percent: str) -> float:
    return round(float(percent) / 100, 6)  # two decimals of a percentage: 0.6985, not 0.6984999999999999


def read_pressure(files: Files, into: Gathering) -> None:
    """Read the machine's pressure."""
    total, ratio = HOST + "pressure_seconds_total", HOST + "pressure_ratio"
    for resource in RESOURCES:
        text = files.read(f"proc/pressure/{resource}")
        lines = [] if isinstance(text, Unread) else parse_pressure(text)
        if not lines:
            off = not isinstance(text, Unread) or text.reason is MissingReason.NOT_SUPPORTED
            why = text if isinstance(text, Unread) and not off else Unread(MissingReason.NOT_SUPPORTED, _OFF)
            into.miss([total, ratio], why, resource=resource)
        for line in lines:
            into.add(total, line.seconds, resource=resource, share=line.share)
            for window, value in zip(_WINDOWS, line.ratios, strict=True):
                into.add(ratio, value, resource=resource, share=line.share, window=window)
