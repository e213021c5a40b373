"""`stepscope run`: what it passes to the command, and what it rejects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.training.captures.schedule import Schedule
from stepscope.zero_code import patches
from stepscope.zero_code.launch import OPTIONS_VARIABLE, RunOptions, launch_environment, take_options
from stepscope.zero_code.startup.sitecustomize import WATCHED

_ORDER = RunOptions("/runs", None, [0, 3], Schedule(first=9, period=20), with_stack=True)


def _refused(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "stepscope", "run", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    return line


def test_an_order_arrives_as_it_was_given_and_only_once() -> None:
    environment = launch_environment(_ORDER, {})
    assert take_options(environment) == _ORDER
    assert take_options(environment) is None


@pytest.mark.parametrize("path", ["", "/mine::/yours", "/mine:", ":/mine"])
def test_the_path_keeps_what_was_on_it_and_nothing_twice(path: str) -> None:
    once = launch_environment(_ORDER, {"PYTHONPATH": path})
    folder, *others = once["PYTHONPATH"].split(os.pathsep)
    assert (Path(folder) / "sitecustomize.py").is_file()
    assert os.pathsep.join(others) == path
    assert launch_environment(_ORDER, once)["PYTHONPATH"] == once["PYTHONPATH"]


def test_an_empty_entry_of_the_path_is_still_the_folder_it_starts_in(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "mine.py").write_text("print('found')")
    (tmp_path / "tools" / "script.py").write_text("import mine")
    path = os.pathsep.join([str(Path(patches.__file__).parents[2]), ""])
    ran = subprocess.run(
        [sys.executable, "-m", "stepscope", "run", "--", sys.executable, "tools/script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("found\n", "", 0)


def test_disabled_hands_the_environment_on_unchanged() -> None:
    given = {"STEPSCOPE_DISABLE": "1", "PYTHONPATH": "/mine"}
    assert launch_environment(_ORDER, given) == given
    assert OPTIONS_VARIABLE in launch_environment(_ORDER, given | {"STEPSCOPE_DISABLE": "0"})


def test_what_is_watched_is_what_is_looked_into() -> None:
    assert set(patches._PATCHES) == WATCHED


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "stepscope run -- torchrun train.py"),
        (("python", "train.py"), "stepscope run -- torchrun train.py"),
        (("python", "--", "train.py"), "python"),
        (("--", "no-such-command-here"), "no-such-command-here: no such command"),
        (("--", "./train.py"), "stepscope run -- python ./train.py"),
        (("--", "/"), "cannot be run"),
        (("--run", "a/b", "--", "true"), "--run"),
        (("--ranks", "first", "--", "true"), "--ranks"),
        (("--every", "2", "--", "true"), "do not fit"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    assert words in _refused(*arguments)


def test_options_of_the_command_are_its_own() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "stepscope", "run", "--", "echo", "--debug", "--help", "--", "-x"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "--debug --help -- -x\n")


def test_a_python_without_stepscope_finds_the_one_that_started_it() -> None:
    path = str(Path(patches.__file__).parent / "startup" / "sitecustomize.py")
    code = f"""
import importlib.util, sys, types
spec = importlib.util.spec_from_file_location("startup", {path!r})
startup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(startup)
before = list(sys.path)
startup._stepscope_looks_into(types.ModuleType("torch.distributed.checkpoint.state_dict"))
assert sys.path == before
print(sys.modules["stepscope.zero_code.patches"].__file__)
"""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == patches.__file__
