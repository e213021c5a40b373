"""`stepscope workload faults`: lists what can be injected, in agreement with the documentation."""

from __future__ import annotations

import json

import pytest

from stepscope.cli import main
from stepscope.reference_workloads.injections.catalogue import INJECTIONS
from stepscope_reference import PAGES
from stepscope_reference.markdown import text


def _output(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["workload", "faults", *options])
    assert not stop.value.code
    return capsys.readouterr().out


def test_every_fault_is_listed_with_its_severity(capsys: pytest.CaptureFixture[str]) -> None:
    text = _output(capsys)
    assert "straggler  rank=1, extra_ratio=1.0\n" in text
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")] == list(INJECTIONS)


def test_the_json_document_says_what_must_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(_output(capsys, "--json"))
    assert document["schema"] == "stepscope.faults/1"
    slow = document["faults"][0]
    assert (slow["name"], slow["cause"], slow["severity"]) == (
        "slow_loader",
        "data_loading",
        {"milliseconds_per_item": 60.0, "num_workers": 0},
    )


@pytest.mark.parametrize("name", INJECTIONS)
def test_the_documents_say_the_same(name: str) -> None:
    row = next(line for line in PAGES["faults"]().splitlines() if line.startswith(f"| `{name}` |"))
    kind = INJECTIONS[name]
    assert f"`{kind.cause}`" in row
    assert text(kind.shows) in row
