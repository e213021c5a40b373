"""Exit codes: of each expected error, and of what else can end a command."""

from __future__ import annotations

import errno
import io
import re
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import click

import stepscope
from stepscope.cli import main
from stepscope.collectors.kineto_daemon.server import AddressInUseError
from stepscope.collectors.nvml.binding import DriverUnusableError, GpuUnusableError
from stepscope.collectors.safe_pickle.loading import UnsafePickleError
from stepscope.core.errors import (
    DataError,
    NotATraceError,
    StepscopeError,
    TruncatedTraceError,
    UnreachableError,
    UsageError,
)
from stepscope.reference_workloads.processes import RankFailedError
from stepscope.store.history.prometheus_api import TooMuchError
from stepscope.store.runs import NotAnalysedError, UnknownRunError
from stepscope.workflow.fan_out.tasks import KilledError
from stepscope.workflow.inputs.paths import OnlyRunError
from stepscope.workflow.inputs.trace_files import NoCaptureError, ReducedTraceError
from stepscope.workflow.transfer.upload_runs import UploadInUseError
from stepscope.workflow.views.view_format import UnusableViewError

_ERRORS: tuple[type[StepscopeError], ...] = (
    StepscopeError,
    UsageError,
    DataError,
    NotATraceError,
    TruncatedTraceError,
    UnreachableError,
    DriverUnusableError,
    GpuUnusableError,
    KilledError,
    NotAnalysedError,
    NoCaptureError,
    ReducedTraceError,
    OnlyRunError,
    RankFailedError,
    AddressInUseError,
    TooMuchError,
    UnknownRunError,
    UnsafePickleError,
    UnusableViewError,
    UploadInUseError,
)
_ENDINGS: Mapping[str, BaseException] = {
    "click's ClickException": click.ClickException("wrong"),
    "click's UsageError": click.UsageError("wrong"),
    "a package that is not installed": ModuleNotFoundError("no module", name="numpy"),
    "an OSError of a file": OSError(errno.ENOENT, "no such file", "file"),
    "an OSError of the output": OSError(errno.ENOSPC, "no space left"),
    "the reader of the output went away": BrokenPipeError(),
    "Ctrl-C": KeyboardInterrupt(),
    "Ctrl-C at a prompt": click.exceptions.Abort(),
}
_CLASS = re.compile(r"^class (\w+)\(([\w., ]+)\):", re.MULTILINE)


def exit_codes() -> dict[str, dict[str, int]]:
    """The code that an error carries, and the one with which a command ends that raises it."""
    return {
        "errors": {error.__name__: error.exit_code for error in _ERRORS},
        "commands": {
            "nothing wrong": _code_of(None),
            **{error.__name__: _code_of(error("wrong")) for error in _ERRORS[1:6]},
            **{name: _code_of(error) for name, error in _ENDINGS.items()},
        },
    }


def error_classes_in_the_source() -> set[str]:
    """Names of all public classes of expected errors."""
    files = Path(stepscope.__file__).parent.rglob("*.py")
    found = [match for path in files for match in _CLASS.findall(path.read_text(encoding="utf-8"))]
    errors = {"StepscopeError"}
    while more := {name for name, bases in found if errors & set(bases.split(", "))} - errors:
        errors |= more
    return {name for name in errors if not name.startswith("_")}


def _code_of(error: BaseException | None) -> int:
    """With which a command ends that raises this."""

    def invoke(_: click.Context) -> int:
        if error is not None:
            raise error
        return 0

    with (
        mock.patch("stepscope.cli.root.invoke", invoke),
        mock.patch("stepscope.cli._drop_output"),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        try:
            main(["doctor"])
        except SystemExit as end:
            return int(end.code or 0)
