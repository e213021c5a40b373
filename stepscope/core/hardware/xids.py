"""XIDs and SXids: meaning, severity and action of each.

An XID is an error that NVIDIA's driver reports for a GPU, an SXid one for an NVSwitch. This table follows NVIDIA's
catalogue (docs.nvidia.com, October 2025, also the source of gpud's tables). It was compared with NVSentinel's tables
and DCGM's health watch (DcgmHealthWatch.cpp); where they disagree:

- Faults of applications (13, 31, 32, 43 ...) are `info`; DCGM warns. A user's bug must not take a GPU out of service;
  repeated faults of one GPU are a rule of their own (`xid_repeats`).
- 62: reset the GPU (NVIDIA); DCGM only warns. The halted microcontroller manages power and clocks.
- 63, 92, 121, 137: no action (NVIDIA); DCGM warns. Remapped rows and corrected errors are measured separately.
- 42, 56 to 58, 73: no longer in use (NVIDIA); DCGM warns. They mean an old driver: warning, diagnostics.
- 74, 144 to 150: NVIDIA's action depends on further fields of the line; without them: diagnostics. 74 is critical as in
  DCGM; most of the others are not fatal, and fatal ones come with a 48, 154 or 155: warning.
- 94: only restart the application (NVIDIA; gpud's threshold for a reboot is 1,000 on purpose).
- 160, 161: no action (NVIDIA); NVSentinel reboots for one of them.
- 162 to 170: no action from NVIDIA yet; ours follows from their description.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.hardware.health import Action, Severity

_INFO, _WARNING, _CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL


class XidClass(StrEnum):
    """Kind of an XID, an error that NVIDIA's driver reports for a GPU."""

    APPLICATION = "application"  # most likely caused by the application
    INFORMATIONAL = "informational"
    CLEANUP = "cleanup"  # the driver cleans up after an error or a killed process
    CONTAINED = "contained"  # a memory error that affected one application only
    MEMORY = "memory"
    LINK = "link"
    RESET = "reset"  # the GPU does not work until it is reset
    HARDWARE = "hardware"
    SOFTWARE = "software"  # driver, firmware or virtual machine
    UNCLASSIFIED = "unclassified"  # no catalogue has useful information


@dataclass(frozen=True, slots=True)
class Xid:
    """One kind of GPU error in the catalogue: XID or SXid.

    Attributes:
        sentence: what happened, for people.
    """

    number: int
    kind: XidClass
    severity: Severity
    action: Action
    sentence: str


_COPY_ENGINES = {39: 0, 40: 1, 41: 2, 70: 3, 71: 4, 72: 5, 75: 6, 76: 7, 77: 8, 85: 9} | {
    126 + index: 10 + index for index in range(10)
}
_DECODERS = {68: 0, 83: 1, 84: 2, 88: 3, 89: 4, 96: 5, 97: 6, 98: 7}
_JPEG_ENGINES = {82: 0} | {98 + index: index for index in range(1, 8)}
_LINK_UNITS = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW", 149: "NETIR", 150: "MSE"}
_NO_LONGER_USED = (
    *(*range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31), *range(33, 37), 47, *range(49, 54), 55, 59, 61, 65),
    *(81, 87, 90, 91, 108, *range(111, 119), *range(122, 126), 138),
)
FOLLOWERS = frozenset({43, 45})
"""XIDs that follow another one; alone they mean that a process was killed."""
MEMORY_XIDS = frozenset({48, 64, 94, 95, 140})
"""Uncorrected memory errors. Only 94 says that the damage was contained."""
REPEATABLE = frozenset({13, 31})
"""Faults of an application, unless one GPU has them with several applications."""
LOST_XID = 79

_SENTENCES: dict[tuple[XidClass, Severity, Action], dict[int, str]] = {
    (XidClass.APPLICATION, _INFO, Action.RESTART_APP): {
        8: "A kernel ran past its time limit and was ended.",
        11: "The GPU was sent commands that it does not know.",
        13: "A kernel met an exception: mostly an access out of bounds or an illegal instruction.",
        25: "The GPU was sent commands that are not allowed.",
        31: "A kernel used an address that is not mapped: mostly an access out of bounds.",
        32: "The commands that reached the GPU were damaged, in the application or on their way over PCIe.",
        60: "The video processor met an exception.",
        69: "A kernel used the compute engine in a way that it does not allow.",
        80: "Commands sent to the GPU had a wrong checksum.",
        86: "The optical flow accelerator met an exception.",
        139: "The second optical flow accelerator met an exception.",
        **{xid: f"Copy engine {engine} met an exception." for xid, engine in _COPY_ENGINES.items()},
        **{xid: f"Video decoder {engine} met an exception." for xid, engine in _DECODERS.items()},
        **{xid: f"JPEG decoder {engine} met an exception." for xid, engine in _JPEG_ENGINES.items()},
    },
    (XidClass.INFORMATIONAL, _INFO, Action.NONE): {
        14: "A test message of the driver.",
        37: "The driver's firmware was asked for something that it does not do.",
        38: "The driver's firmware took too long once.",
        43: "A process was ended after a fault of its own; the GPU is fine.",
        44: "The compute engine met a fault while it changed from one process to another.",
        63: "A damaged row or page of memory was noted; it is replaced at the next reset.",
        66: "The driver used a register that it may not use.",
        67: "The driver used a register that it may not use.",
        92: "Many memory errors were corrected in a short time.",
        93: "The GPU's small permanent memory was written more often than it is made for.",
        106: "A test message of the management bus.",
        107: "A test message of the management bus.",
        121: "An error between CPU and GPU was corrected.",
        137: "A peer used memory over NVLink that it may not use: the fault of an application.",
        141: "CUDA's fast path met an error.",
        152: "A deep learning accelerator used an address that is not mapped.",
        153: "A deep learning accelerator took too long.",
        154: "The driver changed what it asks for to recover the GPU; the recovery action says what.",
        157: "A damaged part of the GPU could not be retired.",
        160: "A channel of memory was retired.",
        161: "A channel of memory could not be retired.",
        162: "Power smoothing is on again.",
        163: "Power smoothing is off.",
        164: "The parts that smooth power are near the end of their life.",
        165: "The parts that smooth power are at the end of their life.",
        171: "The error of the XID 48 beside it was in the memory chips.",
        172: "The error of the XID 48 beside it was in the GPU's own memory.",
    },
    (XidClass.CLEANUP, _INFO, Action.RESTART_FABRIC_MANAGER): {
        45: "What a process had on the GPU was cleaned up after an error or a kill.",
    },
    (XidClass.CONTAINED, _WARNING, Action.RESTART_APP): {
        94: "A memory error that could not be corrected cost one application; nothing else was hit.",
    },
    (XidClass.MEMORY, _CRITICAL, Action.RESET_GPU): {
        48: "A memory error could not be corrected.",
        64: "A damaged row or page of memory could not be noted for replacement.",
        95: "A memory error could not be corrected, and what it hit is not known: any result may be wrong.",
        140: "A memory error could not be corrected and was not handled.",
    },
    (XidClass.LINK, _CRITICAL, Action.RUN_DIAGNOSTICS): {
        74: "An NVLink met an error; the fault may be at its other end.",
    },
    (XidClass.LINK, _WARNING, Action.RUN_DIAGNOSTICS): {
        **{xid: f"An NVLink met an error in its part {unit}." for xid, unit in _LINK_UNITS.items()},
    },
    (XidClass.LINK, _CRITICAL, Action.RESET_GPU): {
        136: "An NVLink could not be brought up.",
        155: "An NVLink met an error that its driver defines.",
    },
    (XidClass.RESET, _CRITICAL, Action.RESET_GPU): {
        46: "The GPU stopped working on its commands.",
        62: "The GPU's power management controller halted.",
        109: "The GPU could not change from one process to another in time.",
        110: "The GPU met a security fault.",
        119: "The GPU's system processor did not answer the driver in time.",
        120: "The GPU's system processor met an error.",
        143: "The GPU could not be initialised.",
        156: "A damaged part of the GPU is retired at the next reset.",
        158: "The GPU took too long for something that it cannot go on without.",
        168: "Memory that the GPU keeps for itself is damaged, and there is less of it.",
        169: "The GPU's security processor halted.",
    },
    (XidClass.HARDWARE, _CRITICAL, Action.REBOOT): {
        LOST_XID: "The GPU has fallen off the bus: it answers nothing more.",
        167: "A transfer over PCIe never ended.",
    },
    (XidClass.HARDWARE, _CRITICAL, Action.CHECK_MECHANICALS): {
        54: "The GPU's power cable is not connected.",
    },
    (XidClass.HARDWARE, _WARNING, Action.RUN_DIAGNOSTICS): {
        42: "A video processor met an exception, on an old driver.",
        56: "The display engine met an exception, on an old driver.",
        57: "The GPU's memory interface could not be trained, on an old driver.",
        58: "The GPU's memory interface is not stable, on an old driver.",
        73: "Video encoder 2 met an exception, on an old driver.",
    },
    (XidClass.SOFTWARE, _WARNING, Action.UPDATE_SOFTWARE): {
        78: "A virtual GPU could not be started.",
    },
    (XidClass.SOFTWARE, _CRITICAL, Action.REBOOT): {
        151: "Keys of a confidential virtual machine could not be renewed: restart the virtual machine.",
    },
    (XidClass.UNCLASSIFIED, _WARNING, Action.CONTACT_SUPPORT): {
        142: "Video encoder 3 met an exception.",
        159: "The link between CPU and GPU met an error.",
        166: "Data came over an NVLink before its encryption was set up.",
        170: "An NVLink met an error while it was encrypted.",
        **dict.fromkeys(_NO_LONGER_USED, "NVIDIA's catalogue says that this XID is not in use."),
    },
}

XIDS: dict[int, Xid] = {
    number: Xid(number, *of_all, sentence)
    for of_all, sentences in _SENTENCES.items()
    for number, sentence in sentences.items()
}
"""All XIDs by number."""


def xid_of(number: int) -> Xid:
    """Hardware catalogue of GPU errors: the XID of a number; numbers in no catalogue are warnings."""
    return XIDS.get(number) or Xid(
        number, XidClass.UNCLASSIFIED, _WARNING, Action.CONTACT_SUPPORT, "This XID is in no catalogue known here."
    )


_FABRIC_RESETS = frozenset({10003, 10006, 10007, 10008, 12020, 12028, 12032, 14017})


def sxid_of(number: int, *, is_fatal: bool) -> Xid:
    """Hardware catalogue of NVSwitch errors: the SXid of a number.

    Args:
        number: as the switch's driver logs it.
        is_fatal: as the same line says; there are hundreds of SXids, and for most of them this decides the severity.
    """
    if number in _FABRIC_RESETS:
        sentence = "An NVSwitch met an error that only a reset of all GPUs and switches clears."
        return Xid(number, XidClass.RESET, _CRITICAL, Action.RESET_FABRIC, sentence)
    if number == 10004:
        return Xid(number, XidClass.HARDWARE, _CRITICAL, Action.CHECK_THERMALS, "An NVSwitch is too hot.")
    if number == 11004:
        sentence = "An NVSwitch refused traffic that its routes do not allow: the fabric manager's settings are wrong."
        return Xid(number, XidClass.SOFTWARE, _CRITICAL, Action.RESTART_FABRIC_MANAGER, sentence)
    if not is_fatal:
        sentence = "An NVSwitch met an error and goes on."
        return Xid(number, XidClass.INFORMATIONAL, _INFO, Action.NONE, sentence)
    if 18000 <= number < 20000:
        return Xid(
            number, XidClass.LINK, _CRITICAL, Action.RUN_DIAGNOSTICS, "The signals of an NVSwitch's link are bad."
        )
    return Xid(number, XidClass.LINK, _CRITICAL, Action.RESET_FABRIC, "An NVSwitch met an error that it calls fatal.")
