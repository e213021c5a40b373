"""Addresses on which the agent may listen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.web.server import ListenAddress, listen_address_of
from stepscope.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9455", ListenAddress("127.0.0.1", 9455)),
        ("127.8.8.8:0", ListenAddress("127.8.8.8", 0)),
        ("[::1]:9455", ListenAddress("::1", 9455)),
        ("localhost:80", ListenAddress("localhost", 80)),
    ],
)
def test_this_machine_alone(text: str, expected: ListenAddress) -> None:
    assert listen_address_of(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["0.0.0.0:9455", "[::]:9455", ":9455", "10.1.2.3:9455", "no-such-name.invalid:9455"])
def test_others_may_ask_only_when_told(text: str) -> None:
    with pytest.raises(UsageError, match=r"there is neither TLS nor a login; .*--insecure"):
        listen_address_of(text)
    assert listen_address_of(text, insecure=True).port == 9455


@pytest.mark.parametrize("text", ["", "9455", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:9455"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not HOST:PORT"):
        listen_address_of(text)


@given(st.text(max_size=12))
def test_any_other_text_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        listen_address_of(text + ":1x")
    assert "\n" not in str(raised.value)
