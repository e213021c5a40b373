"""State of a page in its URL, and which page a path is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.dashboard.page_state import SPANS, ColourBy, PageState
from stepscope.dashboard.pages.registry import Route

states = st.builds(
    PageState, metric=st.text(max_size=20), colour=st.sampled_from(ColourBy), last=st.sampled_from(list(SPANS))
)


@given(states)
def test_a_state_comes_back_from_its_query(state: PageState) -> None:
    assert PageState.parse(state.query()) == state


@given(st.text())
def test_any_query_is_a_state(query: str) -> None:
    state = PageState.parse(query)
    assert state.last in SPANS
    assert state.colour in list(ColourBy)


def test_what_is_at_its_default_is_not_in_the_query() -> None:
    assert PageState().query() == ""
    assert PageState(metric="power").query(colour="value") == "?metric=power&colour=value"
    assert PageState.parse("?last=1h&last=forever&x=1") == PageState()


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/runs/a", ["a"]),
        ("/runs/a%2Fb%20c/", ["a/b c"]),
        ("/runs/%2541", ["%41"]),
        ("/runs", None),
        ("/runs/", None),
        ("/runs/a/b", None),
        ("/jobs/a", None),
    ],
)
def test_a_route_decodes_its_parts_once(path: str, parts: list[str] | None) -> None:
    assert Route("/runs/*", lambda *_: None).match(path) == parts  # type: ignore[arg-type]


def test_the_root_is_a_route_of_its_own() -> None:
    root = Route("/", lambda *_: None)  # type: ignore[arg-type]
    assert root.match("/") == []
    assert root.match("/jobs") is None
