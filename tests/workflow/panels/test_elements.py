"""Names from a trace cannot become markup or break a page."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from stepscope.workflow.panels.elements import MAX_NAME_CHARS, clean, info, name, tabs, tag, to_html


def test_texts_and_attributes_are_escaped_and_elements_are_not() -> None:
    assert to_html(tag("p", "<script>&\"'", title="\"><script>'")) == (
        '<p title="&quot;&gt;&lt;script&gt;&#x27;">&lt;script&gt;&amp;&quot;&#x27;</p>'
    )
    assert to_html(tag("p", tag("b", "x"), ["y", None])) == "<p><b>x</b>y</p>"
    assert to_html([tag("i"), "<i>"]) == "<i></i>&lt;i&gt;"


def test_what_html_lacks_is_drawn_without_a_script() -> None:
    views = tabs("views", {"Chart": tag("b", "bars"), "<Table>": "rows"})
    assert to_html(views) == "<b>bars</b><details><summary>&lt;Table&gt;</summary>rows</details>"
    assert "<p>a &lt;b&gt;</p>" in to_html(info("a <b>", about="x"))


def test_characters_that_are_not_seen_are_replaced() -> None:
    assert clean("a\x00b\x1b[0m\u202eevil\ud800\n") == "a\ufffdb\ufffd[0m\ufffdevil\ufffd "


def test_a_long_name_keeps_its_ends() -> None:
    short = name("void kernel<" + "x" * 100_000 + ">(int)")
    assert len(short) <= MAX_NAME_CHARS
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
    seen.feed(to_html(tag("p", text, title=attribute)))
    seen.close()
    assert seen.tags == ["p"]
    assert seen.text == clean(text)
