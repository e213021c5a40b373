"""Documents between log lines are taken out, and no log line is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.nccl.sections import Sections

_RAS = json.dumps({"communicators": [{"hash": "0x1", "size": 1, "ranks": [{"rank": 0}]}]}, indent=1)
_XML = '<system version="1">\n<cpu numaid="0">\n</cpu>\n</system>'


def _read(text: str) -> tuple[list[str], Sections]:
    sections = Sections(enumerate(text.splitlines(keepends=True), 1), file="f")
    return [line.rstrip("\n") for _, line in sections.log_lines()], sections


@pytest.mark.parametrize("document", [_RAS, json.dumps(json.loads(_RAS)), _XML, _XML.replace("\n", "")])
def test_a_document_is_taken_out_of_a_log(document: str) -> None:
    lines, sections = _read(f"before\n{document}\nafter\n")
    assert lines == ["before", "after"]
    assert (len(sections.statuses()), len(sections.topology)) == ((1, 0) if "communicators" in document else (0, 1))


@pytest.mark.parametrize(
    "text", ["{\nloss: 3\n}", "{", "<?xml?>\n<html>\n", "<!DOCTYPE html>\nhost:1:1 [0] a", "{}\n{"]
)
def test_other_documents_are_lines_of_the_log(text: str) -> None:
    lines, sections = _read(text)
    assert lines == text.splitlines()
    assert sections.errors == []


def test_a_document_that_breaks_off_ends_where_a_line_of_the_log_begins() -> None:
    lines, sections = _read(f"{_RAS[:60]}\n[rank0]: a\n{_XML[:30]}\n[rank1]: b\n")
    assert lines == ["[rank0]: a", "[rank1]: b"]
    assert len(sections.errors) == 2


def test_several_answers_of_ras_are_told_apart() -> None:
    table = "Communicators... (0.00s)\n    0         1         4         8        32        32   RUNNING      {}\n"
    _, sections = _read(f"a\n{table.format('OK')}b\n{table.format('MISMATCH')}{_RAS}\n")
    assert [(one.line, one.rows[0].errors) for one in sections.statuses()] == [(2, "OK"), (5, "MISMATCH"), (7, "OK")]


_TIME = "2026-05-02T08:11:18.123Z stdout F "


@pytest.mark.parametrize("before", ["", "0: ", "[1,0]<stdout>:", "worker-0 | ", _TIME])
def test_each_line_of_an_answer_of_ras_has_a_launcher_s_prefix(before: str) -> None:
    lines = [
        *("NCCL version 2.26.2 compiled with CUDA 12.4", "Job summary", ""),
        *("     4          8            1         32       32", "Communicators... (0.00s)"),
        "    0         1         4         8        32        32   RUNNING      OK",
    ]
    _, sections = _read("".join(f"{before}{line}\n" for line in lines))
    (status,) = sections.statuses()
    assert (status.version, status.num_gpus, [row.errors for row in status.rows]) == ("2.26.2", 32, ["OK"])


@pytest.mark.parametrize("document", [_RAS, _XML])
def test_each_line_of_a_document_has_the_time_of_kubernetes(document: str) -> None:
    lines, sections = _read("".join(f"{_TIME}{line}\n" for line in document.splitlines()))
    assert (lines, len(sections.statuses()) + len(sections.topology)) == ([], 1)


_LINE = st.sampled_from(
    ["{", "}", '"communicators": 7', "<system>", "</system>", "<?xml", "text", "[rank0]: a", "1,", ""]
)


@given(st.lists(_LINE, max_size=30))
def test_whatever_order_lines_come_in_none_of_the_log_is_lost(lines: list[str]) -> None:
    log, _ = _read("".join(f"{line}\n" for line in lines))
    assert [line for line in log if line in ("text", "[rank0]: a")].count("[rank0]: a") == lines.count("[rank0]: a")
