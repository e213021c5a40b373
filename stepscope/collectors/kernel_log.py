"""GPU and NVSwitch errors (XID, SXid) from the kernel log, /dev/kmsg.

    NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=python3, Ch 00000008
    NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330) ... fallen off the bus and is not responding to commands.
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, Link 36 TLC RX ...

The kernel log has errors that NVML and DCGM do not report: DCGM missed XID 62, 79, 119 and 120 (NVIDIA/DCGM#162, #235).
A GPU can fall off the bus without an XID (NVIDIA/NVSentinel#155); that is reported as the XID 79 it stands for.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stepscope.core.metrics.readings import GPU, Collection, Finding, Missing, MissingReason, labels_of

KERNEL_LOG = Path("/dev/kmsg")

_ADDRESS = r"(?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?"
_XID = re.compile(rf"NVRM: Xid \({_ADDRESS}\): (\d+)(?:, (.*))?")
_SXID = re.compile(rf"nvidia-nvswitch\d*: SXid \({_ADDRESS}\): (\d+)(?:, (.*))?")
_NAMED_GPU = re.compile(rf"NVRM: (?:The NVIDIA GPU|GPU(?: at)?) {_ADDRESS}")
_PID = re.compile(r"\bpid='?(\d+)")
_OFF_THE_BUS = "fallen off the bus"
_OFF_THE_BUS_XID = 79
_SAME_LOSS_NS = 60 * 10**9
"""The text and the XID 79 of one loss are logged within a second."""
_MAX_RECORDS = 1000
"""Records of one reading; the rest is read next time. The kernel keeps some thousands."""
_MAX_RECORD_BYTES = 8192
"""Bytes of a record (CONSOLE_EXT_LOG_MAX)."""


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAX_SCANNED = 1_000_000
"""Records of the whole log; a kernel that logs faster than it is read ends no scan."""


def boot_id(path: Path = BOOT_ID) -> str | None:
    """Id of this boot of the kernel; None where it cannot be known."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


class KernelLog:
    """Reader of GPU errors that the kernel logs after it was opened. A context manager; never blocks.

    Attributes:
        position: number of the last record that was read; None: not known.
    """

    def __init__(
        self,
        path: Path = KERNEL_LOG,
        *,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        log_clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """One `read` of `path` returns one record; `log_clock_ns` is the records' clock, ns since boot."""
        self._wall_clock_ns = wall_clock_ns
        self._log_clock_ns = log_clock_ns
        self.position: int | None = None
        self._missing: Missing | None = None
        self._file = -1
        self._named: str | None = None
        self._lost_ns: dict[str, int] = {}
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except PermissionError:
            detail = f"{path} may be read by root or with CAP_SYSLOG only"
            self._missing = _missing(MissingReason.NO_PERMISSION, detail)
        except OSError as error:
            self._missing = _missing(MissingReason.NOT_SUPPORTED, f"{path}: {error.strerror}")

    def __enter__(self) -> KernelLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def collect(self) -> Collection:
        """Errors logged since the last call.

        Findings `xid` and `sxid` have the label `pci_bus_id` as NVML writes it; `kernel_log_overrun`: some were lost.
        """
        if self._missing is not None:
            return Collection(missing=(self._missing,))
        findings: list[Finding] = []
        offset_ns = self._wall_clock_ns() - self._log_clock_ns()
        for record in self._records(findings, _MAX_RECORDS):
            self.position = _number_of(record, self.position)
            findings += self._read(record, offset_ns)
        return Collection(findings=tuple(findings))

    def resume(self, position: int | None) -> list[Finding]:
        """Errors that the kernel logged after a record, up to now; `collect` goes on behind them.

        Args:
            position: number of the record; -1: before the first of this boot; None: not known, so none are returned.
        """
        if self._missing is not None:
            return []
        try:
            os.lseek(self._file, 0, os.SEEK_SET)
        except OSError:
            return []
        self.position = position
        findings, overruns = list[Finding](), list[Finding]()
        offset_ns = self._wall_clock_ns() - self._log_clock_ns()
        num_read = 0
        for record in self._records(overruns, _MAX_SCANNED):
            number = self.position = _number_of(record, self.position)
            found = list(self._read(record, offset_ns))  # also what was read before: two records may report one loss
            if position is not None and number is not None:
                if num_read == 0 and number > position + 1 > 0:
                    overruns.append(self._overrun("the kernel log was overwritten while no agent ran"))
                if number > position:
                    findings += found
            num_read += 1
        if num_read == 0 and position is None:
            self.position = -1
        return [] if position is None else findings + overruns

    def _overrun(self, what: str) -> Finding:
        return Finding("kernel_log_overrun", f"{what}; errors may be missing", (), self._wall_clock_ns())

    def _records(self, findings: list[Finding], most: int) -> Iterator[str]:
        for _ in range(most):
            try:
                record = os.read(self._file, _MAX_RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # the kernel overwrote what was not read yet
                    findings.append(self._overrun("the kernel logged more than could be read"))
                    continue
                self._missing = _missing(MissingReason.FAILED, f"the kernel log cannot be read: {error.strerror}")
                return
            if not record:
                return
            yield record.decode(errors="replace")

    def _read(self, record: str, offset_ns: int) -> Iterator[Finding]:
        prefix, _, text = record.partition(";")
        fields = prefix.split(",")
        logged = fields[2] if len(fields) > 2 else ""
        time_ns = offset_ns + int(logged) * 1000 if logged.isdecimal() else self._wall_clock_ns()
        text = text.partition("\n ")[0].replace("\n", " ").strip()  # the device's properties follow
        xid, sxid, named = _XID.search(text), _SXID.search(text), _NAMED_GPU.search(text)
        if xid is not None:
            yield from self._xid(_bus_id(xid), int(xid[4]), xid[5] or "", time_ns)
        elif sxid is not None:
            labels = labels_of(pci_bus_id=_bus_id(sxid), sxid=int(sxid[4]))
            yield Finding("sxid", _message(f"SXid {sxid[4]}", sxid[5]), labels, time_ns)
        if named is not None:
            self._named = _bus_id(named)
        # this record or the one before names the GPU
        if _OFF_THE_BUS in text and xid is None and self._named is not None:
            yield from self._xid(self._named, _OFF_THE_BUS_XID, "GPU has fallen off the bus", time_ns)
            self._named = None

    def _xid(self, bus_id: str, number: int, words: str, time_ns: int) -> Iterator[Finding]:
        if number == _OFF_THE_BUS_XID:
            last_ns, self._lost_ns[bus_id] = self._lost_ns.get(bus_id), time_ns
            if last_ns is not None and abs(time_ns - last_ns) < _SAME_LOSS_NS:  # abs: a clock may be set back
                return
        pid = _PID.search(words)
        labels = labels_of(pci_bus_id=bus_id, xid=number, **({"pid": pid[1]} if pid else {}))
        yield Finding("xid", _message(f"XID {number}", words), labels, time_ns)


def _number_of(record: str, before: int | None) -> int | None:
    """The number that the kernel gave a record; that of the one before where it has none."""
    number = record.partition(";")[0].split(",")[1:2]
    return int(number[0]) if number and number[0].isdecimal() and number[0].isascii() else before


def _bus_id(match: re.Match[str]) -> str:
    """As NVML writes it: 00000000:0F:00.0."""
    return f"{int(match[1], 16):08X}:{match[2].upper()}:{match[3].upper()}.0"


def _message(name: str, words: str | None) -> str:
    return f"{name}: {words}" if words else name


def _missing(reason: MissingReason, detail: str) -> Missing:
    return Missing(GPU + "xid_errors_total", (), reason, detail)
