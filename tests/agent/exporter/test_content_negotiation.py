"""Format and compression of /metrics: as prometheus-client chooses them; gzip for clients that accept it alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder

from stepscope.agent.exporter.content_negotiation import accepts_gzip, page_format_of

_PARTS = st.tuples(
    st.sampled_from(["application/openmetrics-text", "text/plain", "*/*", "text/html", ""]),
    st.sampled_from(["", ";version=0.0.1", "; version=0.0.4", ";version=1.0.0", "; version=1.2.0"]),
    st.sampled_from(["", ";escaping=allow-utf-8", "; escaping=underscores", ";escaping=dots", ";escaping=none"]),
    st.sampled_from(["", ";q=0.5"]),
).map("".join)


@given(st.lists(_PARTS, max_size=4).map(",".join))
def test_the_format_is_the_one_that_prometheus_client_chooses(accept: str) -> None:
    assert page_format_of(accept).content_type == choose_encoder(accept)[1]


@pytest.mark.parametrize("version", ["1", "x", "1.0.x", "", "9" * 5000])
def test_a_malformed_version_is_no_error(version: str) -> None:
    assert page_format_of(f"text/plain;version={version}").content_type == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("gzip", True),
        ("deflate, GZIP ; q=0.5", True),
        ("gzip;q=1.0, identity;q=0", True),
        ("gzip;q=x", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("identity, gzip;Q=0.0", False),
        ("x-gzip", False),
        ("", False),
    ],
)
def test_a_weight_of_zero_forbids_it(header: str, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts
