"""Can a name from a trace become markup, or break a page?"""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from stepscope.workflow.panels.elements import LONGEST_NAME, Markup, clean, join, name, tag


def test_texts_and_attributes_are_escaped_and_markup_is_not() -> None:
    assert tag("p", "<script>&\"'", title="\"><script>'") == (
        '<p title="&quot;&gt;&lt;script&gt;&#x27;">&lt;script&gt;&amp;&quot;&#x27;</p>'
    )
    assert tag("p", tag("b", "x"), ["y", None]) == "<p><b>x</b>y</p>"
    assert join(Markup("<i>"), "<i>") == "<i>&lt;i&gt;"


def test_characters_that_are_not_seen_are_replaced() -> None:
    assert clean("a\x00b\x1b[0m\u202eevil\ud800\n") == "a\ufffdb\ufffd[0m\ufffdevil\ufffd "


def test_a_long_name_keeps_its_ends() -> None:
    short = name("void kernel<" + "x" * 100_000 + ">(int)")
    assert len(short) <= LONGEST_NAME
    assert short.startswith("void kernel<")
    assert short.endswith(">(int)")


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_read_back_as_that_text_and_nothing_else(text: str, attribute: str) -> None:
    seen = _Seen()
    seen.feed(tag("p", text, title=attribute))
    seen.close()
    assert seen.tags == ["p"]
    assert seen.text == clean(text)
