"""`stepscope workload plan`: the resources of a run, and launch scripts that a shell accepts."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from stepscope.cli import main
from stepscope.cli.workload.layout import read_layout
from stepscope.cli.workload.training import run_command as run


def _exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stop:
        main(["workload", "plan", *arguments])
    return stop.value.code or 0


def test_document(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--preset", "cluster", "--tp", "8", "--pp", "4", "--dp", "4", "--micro-batches", "16")
    assert _exit_code("gpt", *options, "--tokens", "2T", "--price-per-gpu-hour", "2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stepscope.workload-plan/1"
    assert document["plan"]["world_size"] == 128
    assert [rank["pp_rank"] for rank in document["memory"]] == [0, 1, 2, 3]
    for rank in document["memory"]:
        assert sum(rank["at_peak"].values()) == rank["peak_bytes"]
    assert {exchange["dimension"] for exchange in document["communication"]} == {"tp", "pp", "dp"}
    assert {e["link"] for e in document["communication"] if e["dimension"] == "tp"} == {"nvlink"}
    assert {e["link"] for e in document["communication"] if e["dimension"] != "tp"} == {"network"}
    assert sum(document["step_parts_ms"].values()) == pytest.approx(document["step_ms"])
    cost = document["cost"]
    assert cost["money"] == pytest.approx(2 * cost["gpu_hours"])
    assert cost["days"] == pytest.approx(2e12 / document["tokens_per_second"] / 86400)
    assert cost["gpu_hours"] == pytest.approx(cost["days"] * 24 * 128)
    assert cost["flops"] == pytest.approx(6 * document["num_parameters"] * 2e12)
    assert document["flops"]["model_per_rank"] * 128 == pytest.approx(document["flops"]["model"])
    seconds = document["step_ms"] / 1e3
    assert document["mfu"] == pytest.approx(document["flops"]["model_per_rank"] / seconds / 989.4e12)


@pytest.mark.parametrize(("gpu", "fits"), [("H100", True), ("T4", False)])
def test_a_job_that_does_not_fit_is_said_to(gpu: str, fits: bool, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("gpt", "--preset", "one-gpu", "--layers", "4", "--gpu", gpu, "--dtype", "float32")
    assert _exit_code(*options, "--json") == 0
    codes = [warning["code"] for warning in json.loads(capsys.readouterr().out)["warnings"]]
    assert ("does_not_fit" in codes) is not fits
    assert _exit_code(*options) == 0
    assert ("Does not fit: a rank needs" in capsys.readouterr().out) is not fits


def test_a_cost_beyond_all_numbers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("gpt", "--tokens", "1e308", "--json") == 2
    assert "--tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--mfu", "0"), ("--network-gbs", "0"), ("--gpus-per-node", "0")])
def test_an_assumption_that_cannot_be_is_refused_by_its_option(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("gpt", option, value) == 2
    assert f"{option}: " in capsys.readouterr().err


def test_report_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("gpt", "--preset", "two-gpu", "--pp", "2", "--tokens", "1B") == 0
    output = capsys.readouterr().out
    for words in ("Memory of a rank", "TFLOP", "Communication", "Bubble", "MFU", "GPU-hours"):
        assert words in output


def test_small_models_have_small_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("gpt", "--pp", "2", "--schedule", "zero-bubble") == 0
    output = capsys.readouterr().out
    for words in (
        "202.9 K parameters",
        "A step is 155.7 MFLOP",
        "at its fullest, MiB",
        "by replaying zero-bubble.",
        "Step about 0.02",
    ):
        assert words in " ".join(output.split())


@pytest.mark.parametrize("kind", ["torchrun", "slurm"])
def test_scripts_pass_the_shell(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--preset", "cluster", "--tp", "8", "--pp", "4", "--dp", "4", "--activation-checkpointing", "full")
    assert _exit_code("gpt", *options, "--emit", kind) == 0
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "--nnodes=16 --nproc-per-node=8" in script
    assert "workload run gpt --preset cluster --device cuda --tp 8 --pp 4 --dp 4 --zero 2 --micro-batches 4" in script
    assert "--activation-checkpointing full" in script
    if kind == "slurm":
        assert [line for line in script.splitlines()[1:] if line.startswith("#SBATCH")] == script.splitlines()[1:9]


_PLAN = ("--preset", "node", "--dp", "8")


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        ("gpt", (*_PLAN, "--zero", "3", "--no-overlap", "--no-prefetch", "--no-pin-memory", "--dtype", "float32")),
        ("gpt", (*_PLAN, "--zero", "0", "--bucket-mb", "0.5", "--max-gradient-norm", "1.5", "--compile")),
        ("gpt", (*_PLAN, "--zero", "2", "--cpu-offload", "--checkpoint-every", "7", "--checkpoint-mode", "async")),
        ("gpt", (*_PLAN, "--zero", "0", "--replicate", "--loader-workers", "3", "--loader-prefetch", "4")),
        ("gpt", ("--preset", "node", "--tp", "8", "--sequence-parallel", "--loss-parallel", "--resume-from", "a b")),
        ("gpt", ("--preset", "node", "--pp", "4", "--schedule", "zbv", "--micro-batches", "8", "--layers", "8")),
        ("llama", ("--preset", "node", "--pp", "4", "--layers", "3,5,5,3", "--activation-checkpointing", "full")),
        ("llama", ("--preset", "node", "--dtype", "float16", "--initial-loss-scale", "1024")),
        ("resnet50", (*_PLAN, "--zero", "1", "--data-dir", "images")),
    ],
    ids=str,
)
def test_a_scripts_command_means_what_was_planned(
    workload: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(workload, *options, "--emit", "torchrun") == 0
    words = shlex.split(capsys.readouterr().out.replace("\\\n", " "), comments=True)
    start = words.index("run")
    assert words[start - 3 : start + 2] == ["-m", "stepscope", "workload", "run", workload]
    meant, written = (
        read_layout(workload, dict(run.make_context("run", [workload, *arguments]).params))
        for arguments in (list(options), words[start + 2 :])
    )
    assert written == meant


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--dp", "2", "--bucket-mb", "3"), "only DistributedDataParallel"),
        (("--pp", "2", "--schedule", "zero-bubble", "--activation-checkpointing", "selective"), "backwards through"),
        (("--no-overlap",), "nothing is reduced"),
        (("--tokens", "1B", "--price-per-gpu-hour", "-3"), "costs nothing or more, not -3"),
        (("--tokens", "1B", "--price-per-gpu-hour", "nan"), "costs nothing or more, not nan"),
        (("--price-per-gpu-hour", "2"), "a price alone"),
        (("--checkpoint-mode", "async"), "no checkpoint is written"),
        (("--gpu", "Voodoo2"), "no GPU 'Voodoo2'"),
        (("--mfu", "1.5"), "at most 1"),
        (("--tokens", "many"), "2T"),
        (("--gpu", "T4", "--preset", "one-gpu"), None),
        (("--preset", "node", "--tp", "2", "--pp", "2", "--dp", "3"), "cannot be divided"),
        (("--preset", "node", "--dp", "8", "--tp", "2", "--gpus-per-node", "5", "--emit", "slurm"), "do not fill"),
        (("--preset", "cluster", "--tp", "16", "--emit", "slurm"), "cut between machines"),
    ],
)
def test_refusals(options: tuple[str, ...], why: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("gpt", *options) == (0 if why is None else 2)
    if why is not None:
        assert why in capsys.readouterr().err


def test_plan_beside_a_run_needs_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["workload", "run", "gpt", "--device", "cpu", "--against-plan"])
    assert stop.value.code == 2
    assert "a plan is an estimate for GPUs" in capsys.readouterr().err


def test_plan_beside_a_run_is_refused_where_no_gpu_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        main(["workload", "run", "gpt", "--against-plan", "--no-profile"])
    assert stop.value.code == 2
    assert "--against-plan: torch finds no CUDA device here" in capsys.readouterr().err
