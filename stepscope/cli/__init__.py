"""The `stepscope` command: one module a verb, loaded only when the verb is called."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from stepscope import __version__
from stepscope.cli.lazy_group import LazyGroup
from stepscope.core.errors import StepscopeError, from_os_error

VERBS: dict[str, str] = {
    "agent": "Read this machine's GPUs and serve what they say to Prometheus.",
    "analyze": "Book every instant of every step, follow waits to their cause, give a verdict.",
    "capture": "Trace steps of a job that trains, without a restart.",
    "compare": "Tell what changed between two runs, and gate on it.",
    "dashboard": "Open the web app over runs and their verdicts.",
    "demo": "Train, profile and analyse on this machine, and print the verdict.",
    "doctor": "Look at driver, permissions, limits and settings of this machine.",
    "hang": "Say which ranks hold a job up, from flight recorder dumps.",
    "memory": "Say what held the GPU's memory, what grows, and why it ran out.",
    "nccl": "Say how a job's GPUs reach each other, and what is wrong with it.",
    "preflight": "Measure this node's GPUs before a job, and say which are unfit.",
    "report": "Write one HTML file of a run that needs no network.",
    "run": "Run a training command, unchanged, and measure its steps.",
    "status": "Say what is wrong with the GPUs of machines, by their agents.",
    "steps": "Say how long every step of a run took, captured or not.",
    "top": "Show the GPUs of machines as a table that lives.",
    "trace": "Look into trace files.",
    "whatif": "Replay a job's traces with one cause removed at a time.",
    "workload": "Run reference training with known bottlenecks.",
}
"""Verb (module of the same name with a click command `command`) -> one line for --help."""


_TRAINS = frozenset({"demo", "run", "workload"})
"""Verbs that start training processes, whose threads are not ours to limit."""


class _Verbs(LazyGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _TRAINS:
            # numpy's BLAS starts a thread a core on import, and nothing here multiplies large matrices
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="stepscope")
@click.option("--debug", is_flag=True, help="Show the traceback of an expected error.")
@click.pass_context
def root(ctx: click.Context, debug: bool) -> None:
    """Where did every GPU-second go, whose fault was it, and what would fixing it buy?"""
    ctx.obj = {"debug": debug}


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: expected errors end as one line on stderr and their exit code."""
    # ending, Python looks through all that is left for cycles: a tenth of the time that a small trace takes
    atexit.register(gc.freeze)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if debug:  # accepted before and after the verb, up to a wrapped command's own arguments
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        arguments = [a for a in ours if a != "--debug"] + arguments[len(ours) :]
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
        click.echo(f'stepscope: {error.name} is not installed; run: pip install "stepscope[{extra}]"', err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()  # the reader of our output went away; nothing is left to say
        sys.exit(0)
    except OSError as error:
        if debug:
            raise
        _drop_output()
        if error.filename:
            told = from_os_error(error, "cannot be read or written", where=str(error.filename))
        else:  # only what is open already has no name: most of all stdout
            told = from_os_error(error, "cannot be written", where="output")
        click.echo(f"stepscope: {told}", err=True)
        sys.exit(told.exit_code)


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
    "torch": "workloads",
}
"""Import name -> the extra that brings it."""


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
    except click.ClickException as error:
        said = " ".join(error.format_message().split()).rstrip(".")
        click.echo(f"stepscope: {said}{' See' if said.endswith('?') else '; see'} --help", err=True)
        return error.exit_code
