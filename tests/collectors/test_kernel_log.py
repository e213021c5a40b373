"""GPU errors in the kernel log are found once each, with their GPU and time."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.metrics.readings import Finding, MissingReason


class Log:
    """A log of which one `read` returns one record, as of the kernel's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader.setblocking(False)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", lambda *_: reader.detach())
            patch.setattr(os, "lseek", lambda *_: 0)
            self.log = KernelLog(wall_clock_ns=lambda: 1_000_000_000_000, log_clock_ns=lambda: 50_000_000_000)

    def write(self, text: str, *, at_us: int = 49_000_000) -> None:
        self.writer.send(f"3,1234,{at_us},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:61:00.0\n".encode())

    def told(self) -> list[tuple[str, dict[str, str]]]:
        return [(finding.code, dict(finding.labels)) for finding in self.log.collect().findings]

    def findings(self) -> tuple[Finding, ...]:
        return self.log.collect().findings


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    made = Log(monkeypatch)
    yield made
    made.writer.close()
    made.log.__exit__()


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (
            "NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=python3, Ch 00000008",
            {"pci_bus_id": "00000000:61:00.0", "xid": "45", "pid": "1496200"},
        ),
        (
            "NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            {"pci_bus_id": "00000000:0F:00.0", "xid": "79"},
        ),
        ("NVRM: Xid (0000:b3:00): 31, Ch 0000007e", {"pci_bus_id": "00000000:B3:00.0", "xid": "31"}),
        ("NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal", {"pci_bus_id": "00000018:01:00.0", "xid": "145"}),
        ("[  12.3] NVRM: Xid (PCI:0000:61:00.0): 94, Contained", {"pci_bus_id": "00000000:61:00.0", "xid": "94"}),
    ],
)
def test_bug_dcgm_235_xids_are_read_as_the_driver_writes_them(log: Log, text: str, labels: dict[str, str]) -> None:
    log.write(text)
    assert log.told() == [("xid", labels)]
    assert log.told() == []


def test_a_record_has_the_time_at_which_it_was_logged(log: Log) -> None:
    log.write("NVRM: Xid (PCI:0000:61:00): 94, Contained", at_us=48_500_000)
    (finding,) = log.findings()
    assert finding.time_ns == 1_000_000_000_000 - 1_500_000_000
    assert finding.message == "XID 94: Contained"


@pytest.mark.parametrize(
    "texts",
    [
        ("NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330) has fallen off the bus and is not responding.",),
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ),
        ("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",),
        ("NVRM: GPU at PCI:0000:b3:00: GPU-1234", "NVRM: GPU has fallen off the bus."),
    ],
)
def test_bug_nvsentinel_155_a_gpu_that_falls_off_the_bus_without_an_xid_is_an_xid_79(
    log: Log, texts: tuple[str, ...]
) -> None:
    for text in texts:
        log.write(text)
    assert log.told() == [("xid", {"pci_bus_id": "00000000:B3:00.0", "xid": "79"})]


def test_one_loss_is_told_once_in_whatever_words_it_comes(log: Log) -> None:
    log.write("NVRM: Xid (PCI:0000:b3:00): 79, pid=7, GPU has fallen off the bus.")
    log.write("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.")
    log.write("NVRM: Xid (PCI:0000:b4:00): 79, pid=7, GPU has fallen off the bus.")
    log.write("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.", at_us=49_000_000 + 61 * 10**6)
    assert [labels["pci_bus_id"][9:11] for _, labels in log.told()] == ["B3", "B4", "B3"]
    log.write("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.", at_us=30_000_000)  # the clock was set back
    assert [labels["pci_bus_id"][9:11] for _, labels in log.told()] == ["B3"]


def test_a_switchs_error_is_no_gpus(log: Log) -> None:
    log.write("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, Link 36 TLC RX")
    assert log.told() == [("sxid", {"pci_bus_id": "00000000:C1:00.0", "sxid": "20001"})]


@pytest.mark.parametrize(
    "text",
    [
        "usb 1-1: new high-speed USB device",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.03",
        "python[99]: NVRM: Xid (PCI:zz): 79",
        "a disk has fallen off the bus",
    ],
)
def test_other_lines_are_nothing(log: Log, text: str) -> None:
    log.write(text)
    assert log.told() == []


def test_a_storm_is_read_in_parts(log: Log) -> None:
    log.writer.setblocking(False)
    written = 0
    with contextlib.suppress(BlockingIOError):
        while written < 3000:
            log.write("NVRM: Xid (PCI:0000:61:00): 92, High single-bit ECC error rate")
            written += 1
    told = 0
    while findings := log.findings():
        assert len(findings) <= 1000
        told += len(findings)
    assert told == written


def test_records_that_were_overwritten_are_said(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[OSError] = [OSError(32, "Broken pipe"), BlockingIOError()]

    def overwritten(*_: object) -> bytes:
        raise errors.pop(0)

    monkeypatch.setattr(os, "read", overwritten)
    assert [finding.code for finding in log.findings()] == ["kernel_log_overrun"]


def test_a_log_that_may_not_be_read_is_missing_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (missing,) = KernelLog(tmp_path / "absent").collect().missing
    assert missing.reason is MissingReason.NOT_SUPPORTED

    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refused)
    with KernelLog() as log:
        (missing,) = log.collect().missing
    assert missing.reason is MissingReason.NO_PERMISSION
    assert "CAP_SYSLOG" in missing.detail


@given(st.text(max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    made = KernelLog(Path("/nonexistent"))
    for finding in made._read(f"3,1,2,-;{text}", 0):
        assert finding.code in {"xid", "sxid"}


class LogFile:
    """The kernel log as a file of records of one size, of which one `read` returns one; it outlives its readers."""

    def __init__(self, path: Path, first: int = 0) -> None:
        self.path = path
        self._number = first
        path.touch()

    def write(self, text: str) -> None:
        record = f"4,{self._number},{self._number + 1},-;{text}\n".encode()
        with self.path.open("ab") as stream:
            stream.write(record.ljust(8192))
        self._number += 1

    def resume(self, position: int | None) -> tuple[list[str], int | None, list[str]]:
        """What an agent that begins reads, how far it came, and what it reads of a record that comes then."""
        with KernelLog(self.path) as log:
            before, came = log.resume(position), log.position
            self.write("NVRM: Xid (PCI:0000:61:00): 31, then")
            return [one.message for one in before], came, [one.message for one in log.collect().findings]


def test_what_came_after_the_last_record_that_was_read_is_read_once(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "kmsg", first=7)
    for text in ("usb 1-1: new", "NVRM: Xid (PCI:0000:61:00): 13, a", "eth0: up", "NVRM: Xid (PCI:0000:61:00): 94, b"):
        log.write(text)
    assert log.resume(8) == (["XID 94: b"], 10, ["XID 31: then"])
    assert log.resume(11) == ([], 11, ["XID 31: then"])


def test_of_another_boot_all_is_read_and_without_a_last_look_nothing(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "kmsg")
    log.write("NVRM: Xid (PCI:0000:61:00): 13, a")
    assert log.resume(-1) == (["XID 13: a"], 0, ["XID 31: then"])
    assert log.resume(None) == ([], 1, ["XID 31: then"])


def test_an_empty_log_has_a_position_too(tmp_path: Path) -> None:
    assert LogFile(tmp_path / "kmsg").resume(None) == ([], -1, ["XID 31: then"])


def test_what_the_kernel_overwrote_meanwhile_is_said(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "kmsg", first=100)
    log.write("eth0: up")
    (line,), _, _ = log.resume(41)
    assert line == "the kernel log was overwritten while no agent ran; errors may be missing"
    assert log.resume(99)[0] == ["XID 31: then"]


def test_a_loss_of_which_the_first_record_was_read_before_is_no_second_one(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "kmsg")
    log.write("NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus.")
    log.write("NVRM: GPU 0000:61:00.0: GPU has fallen off the bus.")
    assert log.resume(0)[0] == []


def test_a_log_that_begins_anew_is_read_from_its_end(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "kmsg")
    log.write("NVRM: Xid (PCI:0000:61:00): 13, a")
    assert log.resume(1000) == ([], 0, ["XID 31: then"])
