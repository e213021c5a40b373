"""A node's files as they are in the run: names of captures, numbers of attempts, whole lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.workflow.transfer.node_files import (
    attempts_of,
    copy_lines,
    files_of_node,
    merged_manifest,
    num_whole_bytes,
    path_in_run,
    with_attempts,
)


@pytest.mark.parametrize(
    ("path", "before", "in_run"),
    [
        ("traces/step5/rank0.json.gz", 0, "traces/step5/rank0.json.gz"),
        ("traces/step5/rank0.json.gz", 1, "traces/step5-attempt2/rank0.json.gz"),
        ("light/step5-attempt2/rank0.json.gz", 2, "light/step5-attempt4/rank0.json.gz"),
        ("views/step5/rank0.view", 1, "views/step5-attempt2/rank0.view"),
        ("steps/rank0.jsonl", 1, "steps/rank0.jsonl"),
        ("memory/step5/rank0.pickle", 1, "memory/step5/rank0.pickle"),
    ],
)
def test_captures_are_named_by_the_attempt_of_the_run(path: str, before: int, in_run: str) -> None:
    assert path_in_run(path, before) == in_run


def test_lines_have_the_attempt_of_the_run() -> None:
    lines = b'{"index":0,"phases":{"attempt":7}}\n{"index":1,"attempt":2}\nno step\n'
    made = [json.loads(line) for line in with_attempts("steps/rank0.jsonl", lines, 3).splitlines()[:2]]
    assert [step["attempt"] for step in made] == [4, 5]
    assert made[0]["phases"] == {"attempt": 7}
    assert with_attempts("steps/rank0.jsonl", lines, 3).endswith(b"\nno step\n")
    assert with_attempts("metrics/rank0.jsonl", lines, 3) == lines


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b" ")), max_size=8), st.data())
def test_copied_lines_are_whole(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    content = b"\n".join(lines)
    (folder / "steps").mkdir()
    path = folder / "steps" / "rank0.jsonl"
    path.write_bytes(content)
    size = data.draw(st.integers(0, len(content)))
    whole = num_whole_bytes(path, size)
    assert whole == content.rfind(b"\n", 0, size) + 1
    written = io.BytesIO()
    copy_lines(folder, "steps/rank0.jsonl", whole, 0, written)
    assert written.getvalue() == content[:whole]


def _manifest(*starts_ns: int) -> bytes:
    return json.dumps({"run": "r", "attempts": [{"start_ns": start, "end_ns": None} for start in starts_ns]}).encode()


@pytest.mark.parametrize(
    ("own", "before", "merged"),
    [
        ([30], [10, 20], [10, 20, 30]),
        ([30, 40], [10, 30], [10, 30, 40]),
        ([10, 20], [10], [10, 20]),
        ([10], [10, 20], [10]),  # of a folder that is not this one's before
    ],
)
def test_manifests_are_joined_by_their_starts(own: list[int], before: list[int], merged: list[int]) -> None:
    attempts = attempts_of(merged_manifest(_manifest(*own), _manifest(*before)))
    assert [each["start_ns"] for each in attempts] == merged


@pytest.mark.parametrize(
    "before", [None, b"", b"{}", b'{"attempts": [7]}', b"\xff", b'{"attempts": [{"start_ns": "x"}]}']
)
def test_a_manifest_that_cannot_be_read_changes_nothing(before: bytes | None) -> None:
    assert merged_manifest(_manifest(30), before) == _manifest(30)


def test_what_is_hidden_or_of_others_is_not_uploaded(tmp_path: Path) -> None:
    for name in ("run.json", ".run.json.7.part", "checkpoints/step1/x", "uploads/h.json", "steps/rank3.jsonl", "a.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to("run.json")
    assert [file.path for file in files_of_node(tmp_path)] == ["run.json", "steps/rank3.jsonl", "a.log"]
