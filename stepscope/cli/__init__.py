"""The `stepscope` command: verbs by subject, a module each, loaded only when a verb of it is called."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import click

from stepscope import __version__
from stepscope.core.errors import StepscopeError, from_os_error
from stepscope.core.text.numbers import unknown_name

VERBS: dict[str, tuple[str, str]] = {
    "agent": ("agent", "Collect this machine's GPU metrics and serve them to Prometheus."),
    "analyze": ("traces", "Attribute all GPU time to causes and give a verdict."),
    "capture": ("nodes", "Profile steps of a running job, without a restart."),
    "compare": ("traces", "Compare two runs, and fail on a regression."),
    "cost": ("cost", "Show GPU-hours, energy and money by job, user, team or node."),
    "dashboard": ("training", "Serve the web app of runs and their verdicts."),
    "demo": ("training", "Train, profile and analyze on this machine, and print the verdict."),
    "doctor": ("machine", "Check driver, permissions, limits and settings of this machine."),
    "export": ("export", "Write a run for Perfetto, or its tables as CSV or Parquet."),
    "goodput": ("goodput", "Show what the GPU-time of a job went to, over all its restarts."),
    "hang": ("run_records", "Find the ranks that hold a job up, from flight recorder dumps."),
    "health": ("health", "List health events of GPUs, acknowledge them, or set GPUs healthy."),
    "history": ("history", "Record the metrics of agents, and show them over time."),
    "memory": ("run_records", "Explain what held the GPU's memory, what grows, and why it ran out."),
    "nccl": ("nccl", "Explain how a job's GPUs communicate, and what is wrong with it."),
    "preflight": ("machine", "Measure this node's GPUs before a job, and fail unfit ones."),
    "report": ("traces", "Write the report of a run as one HTML file that needs no network."),
    "run": ("training", "Run an unmodified training command and measure its steps."),
    "runs": ("runs", "List stored runs with their sizes, delete old ones, or upload runs."),
    "status": ("nodes", "List what is wrong with the GPUs of machines, from their agents."),
    "steps": ("run_records", "Show the duration of every step of a run, profiled or not."),
    "top": ("nodes", "Show the GPUs of machines as a live table."),
    "trace": ("traces", "Inspect trace files."),
    "whatif": ("traces", "Predict the step time of a job with one cause removed at a time."),
    "workload": ("workload", "Run reference training jobs with known bottlenecks."),
}
"""Verb -> the module of its command, and one line for --help."""


class CommandGroup(click.Group):
    """A click group that names the nearest command where the given one does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in known:
            raise unknown_name("command", args[0], known, listing=f"see {ctx.command_path} --help")
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """A click group whose verbs are loaded only when called: `<verb>_command` of a module of `package`."""

    def __init__(self, *, package: str, verbs: dict[str, tuple[str, str]], **options: object) -> None:
        """`verbs`: verb -> its module and one line for --help, in the order in which they are listed."""
        super().__init__(**options)  # type: ignore[arg-type]  # click's own
        self._package = package
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return None
        module = import_module(f"{self._package}.{self._verbs[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in self._verbs.items()])


_TRAINS = frozenset({"demo", "run", "workload"})
"""Verbs that start training processes, whose threads are not ours to limit."""
_STAYS = _TRAINS | {"agent", "dashboard", "history", "top"}
"""Verbs that last, and must free cycles of objects while they do."""
_COLLECTED_AFTER = 100_000
"""Objects made between collections: with Python's 700, collecting takes a fifteenth of the time of a small trace."""


class _Verbs(LazyGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _TRAINS:
            # numpy's BLAS starts a thread a core on import, and nothing here multiplies large matrices
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if cmd_name not in _STAYS:
            gc.set_threshold(_COLLECTED_AFTER)
        return super().get_command(ctx, cmd_name)


EXIT_CODES = {
    0: "success",
    1: "a gate failed, or a check found something unfit",
    2: "wrong usage",
    3: "an input cannot be used, or an output cannot be written",
    4: "something cannot be reached, or a rank died",
    130: "interrupted by Ctrl-C",
}
"""Exit code -> what it means; `stepscope run` exits with its command's own."""
_EXIT_CODES = f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}."


@click.command(
    cls=_Verbs,
    package=__name__,
    verbs=VERBS,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="stepscope")
@click.option("--debug", is_flag=True, help="Show the traceback of an expected error.")
@click.pass_context
def root(ctx: click.Context, debug: bool) -> None:
    """Find where the time of GPU training goes, what causes it, and what a fix would save."""
    ctx.obj = {"debug": debug}


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; an expected error is one line on stderr and its exit code."""
    # at exit, Python looks through all that is left for cycles: a tenth of the time that a small trace takes
    atexit.register(gc.freeze)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if debug:  # accepted before and after the verb, up to a wrapped command's own arguments
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        arguments = [a for a in ours if a != "--debug"] + arguments[len(ours) :]
    code = 0
    try:
        code = _run(arguments)
        sys.stdout.flush()
        sys.exit(code)
    except StepscopeError as error:
        if debug:
            raise
        click.echo(f"stepscope: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if debug or extra is None:
            raise
        click.echo(f"stepscope: {error.name} is not installed; run: {_install_command(extra)}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()  # the reader of our output went away; nothing is left to say
        sys.exit(code)
    except OSError as error:
        if debug:
            raise
        _drop_output()
        if error.filename:
            expected = from_os_error(error, "cannot be read or written", where=str(error.filename))
        else:  # only what is open already has no name: most of all stdout
            expected = from_os_error(error, "cannot be written", where="output")
        click.echo(f"stepscope: {expected}", err=True)
        sys.exit(expected.exit_code)


_EXTRA_OF = {
    "prometheus_client": "agent",
    "pynvml": "agent",
    "bcrypt": "agent",
    "yaml": "agent",
    "numpy": "analyze",
    "msgspec": "analyze",
    "isal": "analyze",
    "fsspec": "analyze",
    "rich": "analyze",
    "dash": "dashboard",
    "dask": "dask",
    "distributed": "dask",
    "ray": "ray",
    "dash_mantine_components": "dashboard",
    "fastapi": "dashboard",
    "uvicorn": "dashboard",
    "duckdb": "history",
    "pyarrow": "history",
    "torch": "workloads",
}
"""Import name -> the extra that brings it."""


def _install_command(extra: str) -> str:
    """How to add an extra: by name where stepscope is installed, which needs no index; else from this checkout."""
    from importlib.metadata import PackageNotFoundError, distribution  # 3 MB that only this error needs

    try:
        distribution("stepscope")
    except PackageNotFoundError:
        return f'pip install "{Path(__file__).resolve().parents[2]}[{extra}]"'
    return f'pip install "stepscope[{extra}]"'


_COMPLETION = "_STEPSCOPE_COMPLETE"
"""Set by a shell that asks for completions."""


def _drop_output() -> None:
    """Let the interpreter's last flush go nowhere."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(arguments: list[str]) -> Any:
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths need not be UTF-8
    try:
        if _COMPLETION in os.environ:
            return root.main(args=arguments, prog_name="stepscope")
        # not root.main: it ends a broken pipe with 1, which means a finding here
        with root.make_context("stepscope", arguments) as context:
            return root.invoke(context)
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.NoSuchOption as error:
        listing = f"see {_path_of(error)} --help"
        raise unknown_name("option", error.option_name, error.possibilities or (), listing=listing) from None
    except click.ClickException as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        see = " See" if message.endswith("?") else "; see"
        click.echo(f"stepscope: {message}{see} {_path_of(error)} --help", err=True)
        return error.exit_code


def _path_of(error: click.ClickException) -> str:
    """The command that was called, as it is typed."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return "stepscope" if context is None else context.command_path
