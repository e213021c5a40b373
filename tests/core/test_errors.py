"""Every error is one line that a terminal can show."""

from __future__ import annotations

import errno
import os

import pytest

from stepscope.core.errors import DataError, UsageError, from_os_error


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("is\nbroken\tin two", "is broken in two"),
        ("red \x1b[31m", "red \\x1b[31m"),
        ("turned \u202e", "turned \\u202e"),
        ("half \udcff", "half \\udcff"),
        ("is schön 你", "is schön 你"),
    ],
)
def test_an_error_is_one_line_without_orders_to_the_terminal(what: str, shown: str) -> None:
    assert str(DataError(what, where="a.json", what_next="do\r\nsomething")) == f"a.json: {shown}; do something"


@pytest.mark.parametrize(
    ("number", "next_step"),
    [
        (errno.EACCES, "check its permissions"),
        (errno.EPERM, "check its permissions"),
        (errno.ENOSPC, "free some space"),
        (errno.ENAMETOOLONG, "check the path"),
    ],
)
def test_trouble_with_a_file_says_what_to_do_about_it(number: int, next_step: str) -> None:
    error = OSError(number, os.strerror(number))
    told = f"a.json: cannot be read ({os.strerror(number)}); {next_step}"
    assert str(from_os_error(error, "cannot be read", where="a.json")) == told


def test_trouble_without_a_number_is_told_in_its_own_words() -> None:
    error = from_os_error(OSError("odd"), "cannot be read", where="a", kind=UsageError)
    assert (str(error), error.exit_code) == ("a: cannot be read (odd); check the path", 2)
