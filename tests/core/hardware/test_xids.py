"""XID catalogue agrees with NVIDIA's documentation."""

from __future__ import annotations

import pytest

from stepscope.core.hardware.health import Action, Severity
from stepscope.core.hardware.xids import XIDS, XidClass, sxid_of, xid_of

_APPLICATION = (
    *(8, 11, 13, 25, 31, 32, 39, 40, 41, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89),
    *(*range(96, 106), *range(126, 136), 139),
)
_RESET = (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)
_NOTHING = (14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157)


@pytest.mark.parametrize("number", _APPLICATION)
def test_an_applications_fault_tells_nothing_against_the_gpu(number: int) -> None:
    xid = xid_of(number)
    assert (xid.kind, xid.severity, xid.action) == (XidClass.APPLICATION, Severity.INFO, Action.RESTART_APP)


@pytest.mark.parametrize("number", _RESET)
def test_these_need_a_reset(number: int) -> None:
    assert (xid_of(number).severity, xid_of(number).action) == (Severity.CRITICAL, Action.RESET_GPU)


@pytest.mark.parametrize("number", _NOTHING)
def test_of_these_nothing_is_to_be_done(number: int) -> None:
    assert (xid_of(number).severity, xid_of(number).action) == (Severity.INFO, Action.NONE)


@pytest.mark.parametrize(
    ("number", "severity", "action"),
    [
        (45, Severity.INFO, Action.RESTART_FABRIC_MANAGER),  # NVSentinel#1748: 11,760 on a healthy node
        (48, Severity.CRITICAL, Action.RESET_GPU),
        (54, Severity.CRITICAL, Action.CHECK_MECHANICALS),
        (74, Severity.CRITICAL, Action.RUN_DIAGNOSTICS),
        (78, Severity.WARNING, Action.UPDATE_SOFTWARE),
        (79, Severity.CRITICAL, Action.REBOOT),
        (94, Severity.WARNING, Action.RESTART_APP),
        (149, Severity.WARNING, Action.RUN_DIAGNOSTICS),
        (151, Severity.CRITICAL, Action.REBOOT),
        (160, Severity.INFO, Action.NONE),
        (9999, Severity.WARNING, Action.CONTACT_SUPPORT),
    ],
)
def test_what_is_to_be_done(number: int, severity: Severity, action: Action) -> None:
    assert (xid_of(number).severity, xid_of(number).action) == (severity, action)


def test_every_xid_up_to_172_has_a_row_with_its_own_number_and_one_sentence() -> None:
    assert set(XIDS) == set(range(1, 173))
    for number, xid in XIDS.items():
        assert xid.number == number
        assert xid.sentence.endswith(".")
        assert "\n" not in xid.sentence


@pytest.mark.parametrize(
    ("number", "is_fatal", "severity", "action"),
    [
        (10003, True, Severity.CRITICAL, Action.RESET_FABRIC),
        (12020, False, Severity.CRITICAL, Action.RESET_FABRIC),  # what the catalogue says counts more than the line
        (10004, True, Severity.CRITICAL, Action.CHECK_THERMALS),
        (11004, True, Severity.CRITICAL, Action.RESTART_FABRIC_MANAGER),
        (11012, False, Severity.INFO, Action.NONE),
        (18005, True, Severity.CRITICAL, Action.RUN_DIAGNOSTICS),
        (20001, False, Severity.INFO, Action.NONE),
        (20034, True, Severity.CRITICAL, Action.RESET_FABRIC),
    ],
)
def test_sxids(number: int, is_fatal: bool, severity: Severity, action: Action) -> None:
    sxid = sxid_of(number, is_fatal=is_fatal)
    assert (sxid.severity, sxid.action) == (severity, action)
