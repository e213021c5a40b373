"""How much was read from and written to each disk, and how busy is it?

Only whole disks with hardware behind them: partitions, dm and md devices pass on what a disk counts too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.gathering import Gathering
from stepscope.core.host_metrics import HOST

_SECTOR_BYTES = 512
"""Of /proc/diskstats, whatever the disk's own."""
_NAMES = (
    *("disk_reads_total", "disk_read_bytes_total", "disk_read_seconds_total", "disk_writes_total"),
    *("disk_written_bytes_total", "disk_write_seconds_total", "disk_in_flight", "disk_busy_seconds_total"),
)
_NO_DISK = re.compile(
    r"(loop|ram|zram|dm-|md|sr|fd|nbd)\d+.*|(sd|vd|xvd|hd)[a-z]+\d+|(nvme\d+n|mmcblk)\d+p\d+", re.ASCII
)
"""Where /sys/block does not tell."""


@dataclass(frozen=True, slots=True)
class Disk:
    """One line of /proc/diskstats: counts, bytes, seconds."""

    name: str
    num_reads: int
    read_bytes: int
    read_seconds: float
    num_writes: int
    written_bytes: int
    write_seconds: float
    num_in_flight: int
    busy_seconds: float


def parse_diskstats(text: str) -> list[Disk]:
    """Read /proc/diskstats of any kernel since 2.6 (11 numbers a disk, then more). Other lines are passed over."""
    disks = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 14 or not all(word.isascii() and word.isdecimal() for word in words[3:14]):
            continue
        n = [int(word) for word in words[3:14]]
        disks.append(
            Disk(
                name=words[2],
                num_reads=n[0],
                read_bytes=n[2] * _SECTOR_BYTES,
                read_seconds=n[3] / 1000,
                num_writes=n[4],
                written_bytes=n[6] * _SECTOR_BYTES,
                write_seconds=n[7] / 1000,
                num_in_flight=n[8],
                busy_seconds=n[9] / 1000,
            )
        )
    return disks


def read_disks(files: Files, into: Gathering) -> None:
    """Read all disks."""
    text = files.read("proc/diskstats")
    if isinstance(text, Unread):
        into.miss([HOST + name for name in _NAMES], text)
        return
    blocks = files.names("sys/block")
    for disk in parse_diskstats(text):
        if isinstance(blocks, Unread):
            is_disk = _NO_DISK.fullmatch(disk.name) is None
        else:
            is_disk = files.exists(f"sys/block/{disk.name.replace('/', '!')}/device")
        if not is_disk:
            continue
        values = (
            *(disk.num_reads, disk.read_bytes, disk.read_seconds, disk.num_writes),
            *(disk.written_bytes, disk.write_seconds, disk.num_in_flight, disk.busy_seconds),
        )
        for name, value in zip(_NAMES, values, strict=True):
            into.add(HOST + name, value, device=disk.name)
