"""`stepscope workload bench gpt --preset one-gpu --scales 1,2 -o bench.json`: throughput, and how it scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from stepscope.cli.options import FILE
from stepscope.cli.workload.layout import layout_options, read_layout
from stepscope.core.errors import DataError, UsageError


@click.command("bench")
@click.argument("name", required=False)
@layout_options
@click.option("--scales", metavar="DP[,DP...]", help="Measure these data-parallel sizes.  [default: --dp]")
@click.option("--strong/--weak", "is_strong", help="Keep the batch, or scale it with the ranks.")
@click.option("--batch-size", type=int, help="Batch per step at the smallest scale.  [default: the preset's]")
@click.option("--repeat", "num_repeats", default=1, help="Run each scale this many times.")
@click.option("--steps", "num_steps", default=30, help="Measure this many steps of each run.")
@click.option("--warmup", "num_warmup_steps", default=10, help="Leave out this many steps before.")
@click.option("--simulate-compute", default=0.0, metavar="MS", help="Let layers sleep MS forward and 2 MS backward.")
@click.option("--seed", default=0, help="Seed of weights and data.")
@click.option("--device", default="auto", help="Train on auto, cpu or cuda.")
@click.option("--result", type=click.Path(path_type=Path), help="Run nothing; read this earlier bench instead.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Compare with this earlier bench.")
@click.option("--gate", "gates", multiple=True, metavar="step_time:+N%", help="Exit with status 1 when surely slower.")
@click.option("-o", "--output", type=FILE, help="Write the JSON document to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one stepscope.bench/1 document.")
def bench_command(
    name: str | None,
    is_strong: bool,
    result: Path | None,
    baseline: Path | None,
    gates: tuple[str, ...],
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure workload NAME's throughput (default: gpt), unprofiled, at one or several scales.

    Exits with status 1 only when a gate failed beyond noise.
    """
    from stepscope.reference_workloads.bench import baseline as bench_baseline
    from stepscope.reference_workloads.placement import is_main_rank
    from stepscope.store.files import check_writable

    if result is not None:
        _refuse_unused(click.get_current_context())
    conditions = bench_baseline.parse_bench_gates(gates)
    if conditions and baseline is None:
        raise UsageError("a gate needs an earlier bench", where="--gate", what_next="add --baseline FILE")
    earlier = (
        bench_baseline.read_bench(baseline) if baseline is not None else None
    )  # read first: measuring takes minutes
    speaks = is_main_rank()  # under torchrun one rank speaks for all
    if output is not None and speaks:
        check_writable(output)
    if result is not None:
        bench, ended_by = bench_baseline.read_bench(result), None
        if earlier is not None:
            bench = bench_baseline.compare_with_baseline(bench, earlier, conditions, name=str(baseline))
    else:
        request = _request(name or "gpt", options, is_strong=is_strong)
        bench, ended_by = _measure(request, earlier, conditions, baseline_name=str(baseline))
    if not speaks:
        return
    _show(bench, output, as_json=as_json)
    if ended_by is not None:  # reported last: what was measured until then is kept
        raise ended_by
    if bench_baseline.has_failed_gate(bench):
        click.get_current_context().exit(1)


def _show(bench: Any, output: Path | None, *, as_json: bool) -> None:
    import msgspec

    from stepscope.store.files import write_whole

    document = msgspec.json.format(msgspec.json.encode(bench), indent=1)
    try:
        if output is not None:
            write_whole(output, document + b"\n")
    finally:  # a bench of hours is printed even if it cannot be written
        if as_json:
            click.echo(document.decode())
        else:
            from stepscope.cli.terminal.workload import print_bench

            print_bench(bench)


_WITH_RESULT = frozenset({"result", "baseline", "gates", "output", "as_json"})


def _refuse_unused(context: click.Context) -> None:
    """Raise UsageError when an option that selects what to run was given beside --result."""
    for parameter in context.command.params:
        is_given = context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if is_given and parameter.name not in _WITH_RESULT and context.params[parameter.name or ""] is not None:
            raise UsageError(
                "selects what to run, and --result runs nothing",
                where="NAME" if isinstance(parameter, click.Argument) else parameter.opts[0],
                what_next="leave one of them out",
            )


def _request(name: str, options: dict[str, Any], *, is_strong: bool) -> Any:
    from stepscope.reference_workloads.bench.measurement import BenchRequest
    from stepscope.reference_workloads.bench.result import STRONG, WEAK

    scales, batch_size = options.pop("scales"), options.pop("batch_size")
    simulate_compute_ms = options.pop("simulate_compute")
    sizes = (options["dp"],) if scales is None else _sizes(scales)
    options["dp"] = max(sizes)
    layout = read_layout(name, options)
    preset = layout.preset if batch_size is None else replace(layout.preset, batch_size=batch_size)
    return BenchRequest(
        workload=name,
        plan=layout.plan,
        preset=preset,
        recipe=layout.recipe,
        scales=sizes,
        scaling=STRONG if is_strong else WEAK,
        simulate_compute_ms=simulate_compute_ms,
        **options,
    )


def _measure(
    request: Any, earlier: Any, conditions: Sequence[Any], *, baseline_name: str
) -> tuple[Any, BaseException | None]:
    """The bench, and the error to raise once it is printed."""
    from stepscope.reference_workloads.bench import baseline as bench_baseline
    from stepscope.reference_workloads.bench.measurement import run_bench
    from stepscope.reference_workloads.bench.result import benched_work_of, check_same_work

    if earlier is not None:
        check_same_work(request.work(), benched_work_of(earlier), baseline_name)
    measured = run_bench(request, lambda run: click.echo(run, err=True))
    if earlier is None:
        return measured.bench, measured.ended_by
    try:
        return bench_baseline.compare_with_baseline(
            measured.bench, earlier, conditions, name=baseline_name
        ), measured.ended_by
    except DataError as error:
        return bench_baseline.with_no_baseline(measured.bench, error), measured.ended_by or error


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"data-parallel sizes with commas between, not {text!r}", where="--scales")
    return tuple(map(int, parts))
