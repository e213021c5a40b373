"""Contract with the outside: commands, metrics, JSON keys and exit codes are unchanged and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import stepscope
from tests.contract.exit_codes import error_classes_in_the_source
from tests.contract.samples import keys_and_kinds
from tests.contract.snapshot import NEED_TORCH, SNAPSHOTS, changes_of, path_of

_PACKAGE = Path(stepscope.__file__).parent
_SCHEMA = re.compile(r"stepscope\.[a-z_-]+/\d+")


def _committed(name: str) -> Any:
    return json.loads(path_of(name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [name for name in SNAPSHOTS if name not in NEED_TORCH])
def test_nothing_that_the_outside_relies_on_has_changed(name: str) -> None:
    changes = changes_of(name)
    assert not changes, changes


def test_every_schema_that_the_source_names_has_a_document() -> None:
    named = {schema for path in _PACKAGE.rglob("*.py") for schema in _SCHEMA.findall(path.read_text(encoding="utf-8"))}
    documents = _committed("documents") | _committed("training_documents")
    assert named == {name for name in documents if _SCHEMA.fullmatch(name)}


def test_every_expected_error_has_its_exit_code() -> None:
    assert error_classes_in_the_source() == _committed("exit_codes")["errors"].keys()


def test_every_module_of_a_snapshot_is_compared() -> None:
    assert {path.stem for path in path_of("").parent.glob("*.json")} == set(SNAPSHOTS)


def test_a_key_is_found_at_any_depth_and_told_with_all_that_it_can_be() -> None:
    documents = [{"ranks": [{"ms": 1.5}, {"ms": None}], "mesh": {}}, {"ranks": [{}], "mesh": {"dp": 2}, "why": "text"}]
    assert keys_and_kinds(documents) == {
        "mesh.dp": "absent | number",
        "ranks[].ms": "absent | null | number",
        "why": "absent | string",
    }
