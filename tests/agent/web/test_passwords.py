"""Passwords are checked correctly, within a CPU budget."""

from __future__ import annotations

from collections.abc import Callable

import bcrypt
import pytest

from stepscope.agent.web import routes as passwords_module
from stepscope.agent.web.routes import PasswordCheck, Passwords

_USERS = {name: bcrypt.hashpw(name.encode() * 2, bcrypt.gensalt(4)) for name in ("alice", "bob")}


class _Clock:
    """Time that goes on when a check takes some."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> tuple[_Clock, list[bytes]]:
    """A clock, and the passwords that bcrypt was asked for, half a second each."""
    clock, asked = _Clock(), list[bytes]()
    really: Callable[[bytes, bytes], bool] = passwords_module._matches

    def matches(password: bytes, hashed: bytes) -> bool:
        asked.append(password)
        clock.now += 0.5
        return really(password, hashed)

    monkeypatch.setattr(passwords_module, "_matches", matches)
    return clock, asked


def test_right_and_wrong() -> None:
    passwords = Passwords()
    assert passwords.check(_USERS, "alice", b"alicealice", "c") is PasswordCheck.RIGHT
    assert passwords.check(_USERS, "alice", b"bobbob", "c") is PasswordCheck.WRONG
    assert passwords.check(_USERS, "bob", b"alicealice", "c") is PasswordCheck.WRONG
    assert passwords.check(_USERS, "carol", b"alicealice", "c") is PasswordCheck.WRONG  # a known user's password
    assert passwords.check(_USERS, "", b"", "c") is PasswordCheck.WRONG
    assert passwords.check(_USERS, "alice", b"alicealice" * 8, "c") is PasswordCheck.WRONG  # longer than bcrypt looks
    assert passwords.check(_USERS, "alice", b"alice\0alice", "c") is PasswordCheck.WRONG


def test_each_is_computed_once_also_of_users_that_there_are_not(checked: tuple[_Clock, list[bytes]]) -> None:
    clock, asked = checked
    passwords = Passwords(clock)
    for _ in range(3):
        assert passwords.check(_USERS, "alice", b"alicealice", "a") is PasswordCheck.RIGHT
        assert passwords.check(_USERS, "carol", b"x", "b") is PasswordCheck.WRONG
    assert asked == [b"alicealice", b"x"]
    changed = {"alice": bcrypt.hashpw(b"new", bcrypt.gensalt(4))}
    clock.now += 100
    assert (
        passwords.check(changed, "alice", b"alicealice", "a") is PasswordCheck.WRONG
    )  # remembered of the old hash alone


def test_who_guesses_waits_and_others_do_not(checked: tuple[_Clock, list[bytes]]) -> None:
    clock, asked = checked
    passwords = Passwords(clock)
    assert passwords.check(_USERS, "bob", b"bobbob", "scraper") is PasswordCheck.RIGHT
    answers = [passwords.check(_USERS, "alice", b"%d" % number, "guesser") for number in range(1000)]
    assert answers.count(PasswordCheck.WRONG) == 3  # a second's burst, and what comes back meanwhile
    assert set(answers[3:]) == {PasswordCheck.BUSY}
    assert passwords.check(_USERS, "bob", b"bobbob", "scraper") is PasswordCheck.RIGHT
    assert passwords.check(_USERS, "alice", b"alicealice", "new") is PasswordCheck.RIGHT
    assert len(asked) == 5


def test_many_guessers_together_take_a_share_of_a_core(checked: tuple[_Clock, list[bytes]]) -> None:
    clock, asked = checked
    passwords = Passwords(clock)
    for second in range(1000):
        clock.now = max(clock.now, float(second))
        for guesser in range(20):
            passwords.check(_USERS, "alice", b"%d %d" % (second, guesser), f"10.0.{second % 250}.{guesser}")
    assert len(asked) * 0.5 == pytest.approx(3 + 0.1 * clock.now, abs=1)


def test_right_passwords_are_not_pushed_out_by_wrong_ones(checked: tuple[_Clock, list[bytes]]) -> None:
    clock, asked = checked
    passwords = Passwords(clock)
    assert passwords.check(_USERS, "bob", b"bobbob", "scraper") is PasswordCheck.RIGHT
    for number in range(600):
        clock.now += 100
        passwords.check(_USERS, "alice", b"%d" % number, "guesser")
    assert len(asked) == 601
    assert passwords.check(_USERS, "bob", b"bobbob", "scraper") is PasswordCheck.RIGHT
    assert len(asked) == 601
