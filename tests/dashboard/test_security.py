"""Only addresses that surely stay on this machine count as loopback."""

from __future__ import annotations

import pytest

from stepscope.dashboard.security import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "LOCALHOST"])
def test_loopback_addresses_and_their_one_name(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["127.evil.example", "127.0.0.1.evil.example", "", "0.0.0.0", "::", "10.0.0.1", "host"]
)
def test_names_and_other_addresses_are_not(host: str) -> None:
    assert not is_loopback(host)
