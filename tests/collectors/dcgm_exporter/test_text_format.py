"""Every sample of a page is read; a bad line costs only itself."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stepscope.collectors.dcgm_exporter.page import BadLine, PageSample, parse_dcgm_page

names = st.from_regex(r"DCGM_FI_[A-Z][A-Z0-9_]{0,20}", fullmatch=True)
label_names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,12}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)
words = st.text(string.ascii_letters + string.digits + " -_.:;'{}#%", min_size=1, max_size=8)
quoted = st.lists(words, min_size=2, max_size=3).map('"'.join)
numbers = st.one_of(
    st.integers(0, 2**63 - 1).map(str), st.floats(0, 1e15).map(lambda value: f"{value:f}"), st.just("NaN")
)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@given(st.lists(st.tuples(names, st.dictionaries(label_names, texts, max_size=5), numbers), max_size=8))
def test_well_formed_pages_are_read_as_prometheus_reads_them(
    lines: list[tuple[str, dict[str, str], str]],
) -> None:
    text = ""
    for name, labels, number in lines:
        body = ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items())
        text += f"{name}{{{body}}} {number}\n"
    page = parse_dcgm_page(text)
    theirs = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert page.bad_lines == ()
    assert len(page.samples) == len(theirs)
    for ours, sample in zip(page.samples, theirs, strict=True):
        assert (ours.name, ours.labels) == (sample.name, sample.labels)
        assert float(ours.text) == float(sample.value) or (math.isnan(float(ours.text)) and math.isnan(sample.value))


@given(st.dictionaries(label_names, quoted, min_size=1, max_size=4), numbers)
def test_quotes_that_the_exporter_did_not_escape_are_read_as_they_are(labels: dict[str, str], number: str) -> None:
    body = ",".join(f'{key}="{value}"' for key, value in labels.items())
    page = parse_dcgm_page(f"DCGM_FI_DEV_X{{{body}}} {number}\nDCGM_FI_DEV_Y 1\n")
    assert page.samples == (PageSample("DCGM_FI_DEV_X", labels, number), PageSample("DCGM_FI_DEV_Y", {}, "1"))


@given(st.text())
def test_any_text_is_read_without_an_error_and_no_line_is_lost(text: str) -> None:
    page = parse_dcgm_page(text)
    lines = [line.strip() for line in text.split("\n")]
    assert len(page.samples) + len(page.bad_lines) == sum(1 for line in lines if line and not line.startswith("#"))


def test_a_bad_line_costs_itself_alone() -> None:
    page = parse_dcgm_page('A{gpu="0"} 1\nA{gpu="1" 2\n<html>\nA{gpu="2"} 3\n')
    assert [sample.labels["gpu"] for sample in page.samples] == ["0", "2"]
    assert page.bad_lines == (BadLine(2, 'A{gpu="1" 2'), BadLine(3, "<html>"))


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        ('A{job="say "hi"",gpu="0"} 1', {"job": 'say "hi"', "gpu": "0"}),
        ('A{job="C:\\temp",gpu="0"} 1', {"job": "C:\\temp", "gpu": "0"}),
        ('A{job="ends with \\",gpu="0"} 1', {"job": "ends with \\", "gpu": "0"}),
        ('A{job="a}b{c",gpu="0"} 1', {"job": "a}b{c", "gpu": "0"}),
        ('A{gpu="0", UUID="GPU-1" , pod="p",} 1', {"gpu": "0", "UUID": "GPU-1", "pod": "p"}),
        ('A{gpu="0",hpc_job="x",gpu="9"} 1', {"gpu": "0", "hpc_job": "x"}),
        ('A{gpu="0",job="x",UUID="GPU-9",a"} 1', {"gpu": "0", "job": "x", "UUID": 'GPU-9",a'}),
        ("A{} 1", {}),
        ("A 1", {}),
        ("A{gpu=\"0\"}\t1\r", {"gpu": "0"}),
    ],
)  # fmt: skip
def test_labels_as_exporters_write_them(line: str, labels: dict[str, str]) -> None:
    (sample,) = parse_dcgm_page(line + "\n").samples
    assert (sample.labels, sample.text) == (labels, "1")


def test_a_value_that_is_no_number_stays_a_text() -> None:
    (sample,) = parse_dcgm_page('A{gpu="0"} ERROR - FAILED TO CONVERT TO STRING\n').samples
    assert sample.text == "ERROR - FAILED TO CONVERT TO STRING"


def test_a_time_of_the_line_is_in_nanoseconds() -> None:
    (sample,) = parse_dcgm_page('A{gpu="0"} 5 1700000000123\n').samples
    assert (sample.text, sample.time_ns) == ("5", 1_700_000_000_123_000_000)


def test_a_page_that_was_cut_loses_its_last_line_instead_of_digits() -> None:
    page = parse_dcgm_page('A{gpu="0"} 1\nA{gpu="1"} 12')
    assert [sample.text for sample in page.samples] == ["1"]
    assert page.bad_lines == (BadLine(2, 'A{gpu="1"} 12'),)


def test_a_line_without_end_is_found_out_at_once() -> None:
    assert len(parse_dcgm_page("A{" + "} " * 2_000_000 + "\nB 1\n").bad_lines) == 1
