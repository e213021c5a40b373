"""Any bytes may come from any local process; what libkineto sends is read to the letter."""

from __future__ import annotations

import struct
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.kineto_daemon.protocol import (
    MAX_DATAGRAM_BYTES,
    KinetoDatagramError,
    KinetoPoll,
    KinetoRegistration,
    TraceRequest,
    decode_kineto_datagram,
    encode_kineto_count,
    encode_kineto_request,
)

PID = st.integers(-(2**31), 2**31 - 1)
JOB = st.integers(-(2**63), 2**63 - 1)


def datagram(kind: bytes, payload: bytes) -> bytes:
    return struct.pack("<Q32s", len(payload), kind) + payload


def poll_datagram(kinds: int, job_id: int, pids: list[int]) -> bytes:
    """As libkineto 2.13 sends it: its structure, and the pids behind it."""
    return datagram(b"req", struct.pack(f"<iiq{len(pids)}i", kinds, len(pids), job_id, *pids))


@given(st.integers(0, 3), JOB, st.lists(PID, min_size=1, max_size=1024))
def test_a_poll_is_read_to_the_letter(kinds: int, job_id: int, pids: list[int]) -> None:
    content = poll_datagram(kinds, job_id, pids)
    assert len(content) <= MAX_DATAGRAM_BYTES
    assert decode_kineto_datagram(content) == KinetoPoll(kinds in (2, 3), job_id, tuple(pids))


@given(PID, PID, JOB)
def test_a_registration_is_read_to_the_letter(gpu: int, pid: int, job_id: int) -> None:
    assert decode_kineto_datagram(datagram(b"ctxt", struct.pack("<iiq", gpu, pid, job_id))) == KinetoRegistration(
        gpu, pid, job_id
    )


@given(st.binary(max_size=MAX_DATAGRAM_BYTES))
def test_any_bytes_are_a_question_or_an_error(content: bytes) -> None:
    try:
        question = decode_kineto_datagram(content)
    except KinetoDatagramError:
        return
    assert isinstance(question, KinetoPoll | KinetoRegistration)


@given(st.binary(max_size=200), st.sampled_from([b"req", b"ctxt"]))
def test_any_payload_is_a_question_or_an_error(payload: bytes, kind: bytes) -> None:
    try:
        question = decode_kineto_datagram(datagram(kind, payload))
    except KinetoDatagramError:
        return
    assert isinstance(question, KinetoRegistration if kind == b"ctxt" else KinetoPoll)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 39,
        struct.pack("<Q32s", 2**63, b"req") + b"x" * 20,
        poll_datagram(3, 0, []),
        datagram(b"req", struct.pack("<iiq", 3, -1, 0)),
        datagram(b"req", struct.pack("<iiqi", 3, 2, 0, 1)),
        datagram(b"stop", b""),
    ],
)
def test_what_libkineto_never_sends_is_an_error(content: bytes) -> None:
    with pytest.raises(KinetoDatagramError):
        decode_kineto_datagram(content)


def test_answers_have_the_size_that_the_process_reserves() -> None:
    assert encode_kineto_request("A=1\n") == struct.pack("<Q32s", 4, b"req") + b"A=1\n"
    assert encode_kineto_request("") == struct.pack("<Q32s", 0, b"req")
    assert encode_kineto_count(2) == struct.pack("<Q32si", 4, b"ctxt", 2)


def test_a_process_that_does_not_step_yet_refuses_the_request_instead_of_tracing_its_imports() -> None:
    lines = TraceRequest(PurePosixPath("/tmp/x/a.json"), 3, start_multiple=8).text().splitlines()
    assert "ACTIVITIES_DURATION_MSECS=0" in lines  # without it, 500 ms of whatever the process does
    assert lines[0] == "ACTIVITIES_LOG_FILE=/tmp/x/a.json"
    assert {"PROFILE_START_ITERATION=0", "PROFILE_START_ITERATION_ROUNDUP=8", "ACTIVITIES_ITERATIONS=3"} <= set(lines)


def test_the_trace_appears_with_the_process_id_in_its_name() -> None:
    config = TraceRequest(PurePosixPath("/tmp/x/attempt1.json"), 3)
    assert config.written_path(4711) == PurePosixPath("/tmp/x/attempt1_4711.json")


@pytest.mark.parametrize(
    "path",
    [
        "relative.json",
        "/tmp/../etc/a.json",
        "/tmp/a.json\nPROFILE_WITH_STACK=true",
        "/tmp/a=b/c.json",
        "/tmp/a#b/c.json",
        "/tmp/a.json/b.json",  # the id would go into the folder's name
        "/tmp/a b/c.json",
        "/tmp/a",
    ],
)
def test_a_path_that_libkineto_reads_otherwise_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="would misread the path"):
        TraceRequest(PurePosixPath(path), 3)


@given(st.text(max_size=40))
def test_no_path_adds_a_line_or_a_setting(text: str) -> None:
    try:
        config = TraceRequest(PurePosixPath("/tmp/" + text + "/a.json"), 1)
    except ValueError:
        return
    lines = config.text().splitlines()
    assert len(lines) == 8
    assert all(line.count("=") == 1 and "#" not in line and line.strip() == line for line in lines)


@pytest.mark.parametrize(("steps", "multiple"), [(0, 1), (1, 0), (-1, 1)])
def test_numbers_are_positive(steps: int, multiple: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TraceRequest(PurePosixPath("/tmp/a.json"), steps, start_multiple=multiple)
