"""Pages: read as prometheus-client reads them, as fast lines of a known page, and bounded."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stepscope.workflow.history.pages import NotAPageError, Page, PageLimits, PageReader, with_target_labels

_TARGET = (("instance", "n1:9455"), ("rack", "r1"))
_OWN = ("scrape_duration_seconds", "scrape_samples_scraped", "up")


def _values(page: Page, *, own: bool = False) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Known values by metric and labels; each group fits its label names."""
    found = {}
    for group in page.groups:
        assert group.values.shape == (len(group.entities), len(group.metrics))
        for labels, row in zip(group.entities, group.values, strict=True):
            assert tuple(name for name, _ in labels) == group.label_names
            for metric, value in zip(group.metrics, row, strict=True):
                if not math.isnan(value) and (own or metric not in _OWN):
                    found[metric, labels] = value
    return found


def _read(text: str | bytes, reader: PageReader | None = None, now: float = 0.0) -> Page:
    content = text.encode() if isinstance(text, str) else text
    return (reader or PageReader(_TARGET)).read(content, seconds=0.25, now=now)


def test_series_have_the_labels_of_their_target() -> None:
    page = _read('# HELP a Words.\n# TYPE a gauge\na{gpu="0"} 1.5\nb 2\na{gpu="1"} 3e2\n')
    assert _values(page) == {
        ("a", (("gpu", "0"), *_TARGET)): 1.5,
        ("a", (("gpu", "1"), *_TARGET)): 300.0,
        ("b", _TARGET): 2.0,
    }
    assert page.num_samples == 3


def test_what_is_known_of_the_scrape_is_beside_it() -> None:
    own = {name: value for (name, labels), value in _values(_read("b 2\n"), own=True).items() if labels == _TARGET}
    assert own == {"b": 2.0, "up": 1.0, "scrape_duration_seconds": 0.25, "scrape_samples_scraped": 1.0}
    failed = _values(PageReader(_TARGET).failed(seconds=9.0), own=True)
    assert {name: value for (name, _), value in failed.items()} == {
        "up": 0.0,
        "scrape_duration_seconds": 9.0,
        "scrape_samples_scraped": 0.0,
    }


def test_a_page_cannot_say_itself_that_it_is_up() -> None:
    assert _values(_read("up 0\n"), own=True)["up", _TARGET] == 1.0


def test_numbers_change_from_page_to_page_and_series_come_and_go() -> None:
    reader = PageReader(_TARGET)
    assert _values(_read('a{x="1"} 1\nb 2\n', reader)) == {("a", (*_TARGET, ("x", "1"))): 1.0, ("b", _TARGET): 2.0}
    assert _values(_read('a{x="1"} 5\nb 6\n', reader)) == {("a", (*_TARGET, ("x", "1"))): 5.0, ("b", _TARGET): 6.0}
    assert _values(_read("b 7\n", reader)) == {("b", _TARGET): 7.0}
    assert _values(_read('b 8\na{x="2"} 9\n', reader)) == {("a", (*_TARGET, ("x", "2"))): 9.0, ("b", _TARGET): 8.0}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 1", 1.0),
        ("a\t1", 1.0),
        ("a  1 ", 1.0),
        (" a 1", 1.0),
        ("a 1 1700000000000", 1.0),
        ("a 1 -5", 1.0),
        ('a { x = "1" , } +2.5e-3', 0.0025),
        ("a +Inf", math.inf),
        ("a -Inf", -math.inf),
        ("a .5", 0.5),
        ("a{} 4", 4.0),
    ],
)
def test_what_the_format_allows(line: str, value: float) -> None:
    reader = PageReader(_TARGET)
    for _ in range(2):
        assert list(_values(_read(f"{line}\n", reader)).values()) == [value]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a 1",
        "<html><body>It works</body></html>\n",
        '{"schema": "stepscope.node/1"}\n',
        "not a page\n",
        "a\n",
        "a one\n",
        "a 1_000\n",
        "a 1\r\n",
        "a 0x10\n",
        "a 1 2 3\n",
        "a 1 1.5\n",
        'a{x="1} 2\n',
        "a{x=1} 2\n",
        'a{x="1"y="2"} 2\n',
        'a{x="1",x="2"} 2\n',
        "a{,} 1\n",
        "1a 1\n",
        "# HELP a Nothing else.\n",
        "\n",
        "b 1\na{\n",
        "b 1\n\x00\x01\n",
    ],
)
def test_what_is_not_a_page_is_refused_as_a_whole(text: str) -> None:
    reader = PageReader(_TARGET)
    with pytest.raises(NotAPageError, match=r"^its page "):
        _read(text, reader)
    assert _values(_read("b 2\n", reader)) == {("b", _TARGET): 2.0}
    with pytest.raises(NotAPageError):
        _read(text, reader)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(NotAPageError, match="not a sample"):
        _read(b'a{x="\xff\xfe"} 1\n')


def test_a_remembered_line_with_garbage_for_a_value_is_refused() -> None:
    reader = PageReader(_TARGET)
    _read("a 1\n", reader)
    for value in ("", "x", "1_0", "\r", "1\r", "١"):
        with pytest.raises(NotAPageError):
            _read(f"a {value}\n", reader)


def test_of_a_series_that_comes_twice_the_first_stays() -> None:
    reader = PageReader(_TARGET)
    for _ in range(2):
        page = _read('a{x="1",y="2"} 1\na{y="2",x="1"} 2\nb 3\nb 4\n', reader)
        assert _values(page) == {("a", (*_TARGET, ("x", "1"), ("y", "2"))): 1.0, ("b", _TARGET): 3.0}
        assert (page.num_samples, page.num_duplicates) == (4, 2)


def test_nan_is_no_value() -> None:
    page = _read("a NaN\nb 1\n")
    assert _values(page) == {("b", _TARGET): 1.0}


def test_labels_of_the_target_win_as_in_prometheus() -> None:
    pairs = [("instance", "x"), ("exported_instance", "y"), ("rack", ""), ("reason", "")]
    assert with_target_labels(pairs, _TARGET) == (
        ("exported_exported_instance", "x"),
        ("exported_instance", "y"),
        *_TARGET,
    )


def test_watched_series_are_given_one_by_one() -> None:
    reader = PageReader(_TARGET, watched=frozenset({"a"}))
    for value in (1.0, 2.0):
        page = _read(f'b 5\na{{x="1"}} {value}\na{{x="1"}} 9\n', reader)
        assert [(one.metric, dict(one.labels)["x"], one.value) for one in page.watched] == [("a", "1", value)]


def test_a_mad_target_is_bounded() -> None:
    limits = PageLimits(samples=100, metrics=3, labels=2, text_length=20, new_series=10)
    reader = PageReader(_TARGET, limits=limits)
    page = _read("".join(f"m{number} 1\n" for number in range(5)), reader)
    assert (page.num_samples, page.num_left_out, len(_values(page))) == (5, 2, 3)
    page = _read(f'm0{{a="1",b="2",c="3"}} 1\nm0{{a="{"x" * 21}"}} 1\nm0 4\n', reader)
    assert (page.num_left_out, _values(page)) == (2, {("m0", _TARGET): 4.0})
    page = _read("".join(f'm0{{x="{number}"}} 1\n' for number in range(50)), reader)
    assert (len(_values(page)), page.num_left_out) == (7, 43)
    page = _read("".join(f'm0{{x="{number}"}} 1\n' for number in range(50)), reader, now=1800.0)
    assert (len(_values(page)), page.num_left_out) == (12, 38)
    with pytest.raises(NotAPageError, match="more than 100 samples"):
        _read("m0 1\n" * 101, reader)


def test_series_that_are_gone_are_forgotten() -> None:
    reader = PageReader(_TARGET)
    for number in range(100):
        _read("".join(f'a{{x="{number}-{place}"}} 1\n' for place in range(100)), reader)
    assert len(reader._series) <= 2 * 100 + 256 + 100
    assert len(reader._slots) <= len(reader._series)


def test_bad_pages_leave_nothing_behind() -> None:
    reader = PageReader(_TARGET)
    for number in range(20):
        with pytest.raises(NotAPageError):
            _read("".join(f'a{{x="{number}-{place}"}} 1\n' for place in range(100)) + "bad\n", reader)
    assert (reader._series, reader._slots) == ([], {})


_NAMES = st.from_regex(r"\A[a-z_][a-z0-9_]{0,5}\Z").filter(
    lambda name: not name.startswith("__")
)  # the client refuses these
_VALUES = st.text(st.characters(codec="utf-8"), max_size=8)
_NUMBERS = st.one_of(st.floats(allow_nan=False), st.integers(-(10**18), 10**18))
_SERIES = st.tuples(_NAMES, st.dictionaries(_NAMES, _VALUES, max_size=3), _NUMBERS)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    escaped = {key: text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for key, text in labels.items()}
    pairs = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    return f"{name}{{{pairs}}} {value}\n" if pairs else f"{name} {value}\n"


@given(st.lists(st.lists(_SERIES, max_size=8), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_pages_are_read_as_prometheus_client_reads_them(pages: list[list[tuple[str, dict[str, str], float]]]) -> None:
    reader = PageReader(_TARGET)
    for series in pages:
        text = "".join(_line(*one) for one in series) + "z 1\n"
        expected: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, with_target_labels(list(sample.labels.items()), _TARGET)
                if sample.name not in _OWN or key[1] != _TARGET:
                    expected.setdefault(key, float(sample.value))
        assert _values(_read(text, reader)) == expected


@given(st.binary(max_size=60), st.data())
@settings(max_examples=300, deadline=None)
def test_damage_is_refused_or_read_but_never_crashes(noise: bytes, data: st.DataObject) -> None:
    page = b'a{x="1"} 1.5\nb 2\n# TYPE c counter\nc_total{y="\\"z\\""} 3\n'
    place = data.draw(st.integers(0, len(page)))
    reader = PageReader(_TARGET)
    good = _values(_read(page, reader))
    with suppress(NotAPageError):
        _values(_read(page[:place] + noise + page[place:], reader))
    assert _values(_read(page, reader)) == good


def test_a_recorded_page_of_an_agent(recorded_page: bytes) -> None:
    reader = PageReader(_TARGET)
    expected = {
        (sample.name, with_target_labels(list(sample.labels.items()), _TARGET)): float(sample.value)
        for family in text_string_to_metric_families(recorded_page.decode())
        for sample in family.samples
    }
    for _ in range(2):
        page = _read(recorded_page, reader)
        assert _values(page) == expected
        assert (page.num_samples, page.num_duplicates, page.num_left_out) == (len(expected), 0, 0)


@pytest.fixture
def recorded_page() -> bytes:
    return Path(__file__).with_name("agent_page.txt").read_bytes()
