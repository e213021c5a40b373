"""Compression of /metrics: gzip for clients that accept it, and for no others."""

from __future__ import annotations

import pytest

from stepscope.agent.exporter.metrics_page import accepts_gzip


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
