"""Container build: contains everything the package is built from, and runs an existing command."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from stepscope.cli import main
from tests.deploy.conftest import DEPLOY

_ROOT = DEPLOY.parent
_LINES = (DEPLOY / "container/Containerfile").read_text().splitlines()


def test_the_build_has_what_the_package_needs() -> None:
    copied = {name for line in _LINES if re.match(r"COPY (?!--from)", line) for name in line.split()[1:-1]}
    assert all((_ROOT / name).exists() for name in copied)
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert {"pyproject.toml", "stepscope", project["readme"], *project["license-files"]} <= copied


def test_it_runs_a_verb_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = [line.partition(" ")[2] for line in _LINES if line.startswith("ENTRYPOINT")]
    program, *arguments = json.loads(entry)
    assert program == "stepscope"
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert not ended.value.code
    assert "--config" in capsys.readouterr().out


def test_its_base_is_one_version() -> None:
    bases = [line.split()[1] for line in _LINES if line.startswith("FROM ")]
    assert bases == ["${BASE}"] * 2
    (default,) = [line.partition("=")[2] for line in _LINES if line.startswith("ARG BASE=")]
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-\w+", default)
