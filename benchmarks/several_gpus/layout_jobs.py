"""Jobs of several GPUs in torch's own layouts: tensor parallel by transformers, pipelines, DDP and `fully_shard`."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.labelled_runs import neighbours
from benchmarks.labelled_runs.arms import Arm, arms
from benchmarks.labelled_runs.batches import Source, tokens
from benchmarks.labelled_runs.job import Bench, Fault, Job, Loop, Training, every, save, slow_python
from benchmarks.labelled_runs.models import VOCABULARY, Model, language_model, optimizer_of, precision, transformer
from benchmarks.several_gpus.trainer_jobs import PYTHON_SECONDS, SIZES, SMALL, on_rank

_MODELS = ("transformers:GPT2LMHeadModel", "transformers:LlamaForCausalLM")
SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
_SAVE_PERIOD = 8


def data_parallel(bench: Bench, kind: str, sizes: dict[str, Any], **options: Any) -> Model:
    """A model of transformers under DDP."""
    model = language_model(bench, kind, **sizes)
    devices = None if bench.device.type == "cpu" else [bench.device.index]
    module: Any = DistributedDataParallel(model.module, device_ids=devices, **options)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = module(input_ids=ids, labels=ids).loss
        return answer

    return Model(module, loss, model.source, optimizer_of(module), bench.device)


def _loop(model: Model, **hooks: Callable[[int], None]) -> Loop:
    return Loop(model.learn, lambda num, _: model.source.loader(num), hooks, kept=model)


def _ddp_plain(bench: Bench) -> Training:
    return _loop(data_parallel(bench, "gpt2", SIZES))


def _ddp_saves(bench: Bench) -> Training:
    """Rank 0 saves while the others go on to the next all-reduce."""
    model = data_parallel(bench, "llama", SMALL)
    return _loop(model, saves=every(_SAVE_PERIOD, save(model.module, bench.folder)) if bench.rank == 0 else _nothing)


def _nothing(_index: int) -> None:
    """No hook on this rank."""


class _Shared:
    """Training beside a process that works on the device of rank 1 while the fault is on."""

    def __init__(self, bench: Bench, loop: Loop) -> None:
        self._loop, self._bench = loop, bench
        self._neighbours = _neighbours_of(bench) if bench.rank == 1 else None
        if self._neighbours is not None:
            bench.at_end.callback(self._neighbours.end)
        bench.synchronize()

    def train(self, num_steps: int, on: Set[str], clock: Any) -> None:
        if self._neighbours is not None:
            self._neighbours.let(work="shared" in on)
        self._bench.synchronize()
        self._loop.train(num_steps, on, clock)
        if self._neighbours is not None:
            self._neighbours.let(work=False)


def _neighbours_of(bench: Bench) -> neighbours.Neighbours:
    if bench.device.type == "cuda":
        return neighbours.of_gpu(bench.device.index)
    return neighbours.Neighbours([subprocess.Popen([sys.executable, "-c", "while True: pass"], text=True)])


def _shared_gpu(bench: Bench) -> Training:
    return _Shared(bench, _loop(data_parallel(bench, "llama", SIZES)))


# fully_shard


def _sharded(bench: Bench) -> Model:
    from torch.distributed.fsdp import fully_shard

    model = language_model(bench, "llama", **SIZES)
    layers: list[nn.Module] = list(model.module.model.layers)  # type: ignore[union-attr, arg-type]
    for layer in layers:
        fully_shard(layer)
    fully_shard(model.module)
    model.optimizer = optimizer_of(model.module)
    return model


def _sharded_plain(bench: Bench) -> Training:
    return _loop(_sharded(bench))


# Tensor parallel


def _tensor_parallel(bench: Bench) -> Model:
    """Llama, whose plan transformers knows; loaded from a file, as it must be."""
    from transformers import LlamaForCausalLM

    folder = bench.folder / "llama"
    if bench.rank == 0:
        torch.manual_seed(0)
        width = bench.size(3072, 64 * bench.num_ranks)  # a head for each rank at least
        full = replace(bench, is_tiny=False)
        made: Any = transformer(full, "llama", bench.size(3, 2), width, 1024).to(precision(bench))
        made.save_pretrained(folder)
    bench.synchronize()
    outputs = sys.stdout, sys.stderr
    try:
        module: Any = LlamaForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=precision(bench))
    finally:
        sys.stdout, sys.stderr = outputs  # transformers silences all ranks but the first
    module.train()
    source = Source(tokens(bench.size(1024, 16), VOCABULARY), bench.size(40, 2))

    def loss(ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = module(input_ids=ids, labels=ids).loss
        return answer

    return Model(module, loss, source, _MixedOptimizer(module), bench.device)


class _MixedOptimizer(torch.optim.AdamW):
    """AdamW over sharded and whole parameters, which one list of operands cannot hold together."""

    def __init__(self, module: nn.Module) -> None:
        from torch.distributed.tensor import DTensor

        parameters = list(module.parameters())
        whole = [each for each in parameters if not isinstance(each, DTensor)]
        sharded = [each for each in parameters if isinstance(each, DTensor)]
        super().__init__([{"params": group} for group in (whole, sharded) if group], lr=1e-4, foreach=True)


def _tensor_parallel_python(bench: Bench) -> Training:
    return _loop(_tensor_parallel(bench), python=on_rank(bench, 1, lambda _: slow_python(PYTHON_SECONDS)))


def _tensor_parallel_plain(bench: Bench) -> Training:
    return _loop(_tensor_parallel(bench))


# Pipelines


class _Stage(nn.Module):
    """Some layers of an encoder, the first stage with the embedding, the last with the head."""

    def __init__(self, width: int, num_layers: int, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width) if is_first else nn.Identity()
        make = functools.partial(nn.TransformerEncoderLayer, width, max(width // 128, 1), 4 * width, dropout=0.0)
        self.layers = nn.Sequential(*(make(batch_first=True, norm_first=True) for _ in range(num_layers)))
        self.head = nn.Linear(width, VOCABULARY) if is_last else nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.layers(self.embedding(inputs)))
        return outputs


class _PipelineStep:
    """One step of a pipeline of one stage a rank."""

    def __init__(self, bench: Bench, schedule: str, layers: Sequence[int], num_micro_batches: int) -> None:
        import torch.distributed.pipelining as pipelining

        width, length, rows = bench.size(2816, 64), bench.size(1024, 16), 32 // num_micro_batches
        rank, last = bench.rank, bench.num_ranks - 1
        self._rank, self._last, self._rows = rank, last, rows * num_micro_batches
        with bench.device:
            made = _Stage(width, layers[rank], is_first=rank == 0, is_last=rank == last)
        self.module = made.to(precision(bench))
        hidden = torch.empty(rows, length, width, dtype=precision(bench), device="meta", requires_grad=True)
        ids = torch.empty(rows, length, dtype=torch.int64, device="meta")
        scores = torch.empty(rows, length, VOCABULARY, dtype=precision(bench), device="meta", requires_grad=True)
        stage = pipelining.PipelineStage(
            self.module,
            rank,
            bench.num_ranks,
            bench.device,
            input_args=hidden if rank else ids,
            output_args=scores if rank == last else hidden,
        )
        kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[schedule]
        self._schedule = kind(
            stage,
            num_micro_batches,
            loss_fn=lambda output, target: nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()),
        )
        self.optimizer = optimizer_of(self.module)
        self.source = Source(tokens(length, VOCABULARY), self._rows)
        self.device = bench.device

    def learn(self, batch: torch.Tensor) -> None:
        ids = batch.to(self.device, non_blocking=True)
        inputs = (ids,) if self._rank == 0 else ()
        self._schedule.step(*inputs, target=ids if self._rank == self._last else None, return_outputs=False)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def arm(self) -> Arm:
        return Arm(Model(self.module, _no_loss, self.source, self.optimizer, self.device), self.learn)


def _no_loss(_batch: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("a stage has no loss of its own")


_LAYERS = 2
"""Of a stage: few and wide, so that the host launches a micro-batch sooner than the GPU computes it."""


def _pipeline(bench: Bench, schedule: str, num_micro_batches: int, extra: int = 0) -> Arm:
    """Args: extra: layers that the first stage has more than the others, and the last less."""
    layers = [_LAYERS] * bench.num_ranks
    layers[0], layers[-1] = layers[0] + extra, layers[-1] - extra
    return _PipelineStep(bench, schedule, layers, num_micro_batches).arm()


def _gpipe_few(bench: Bench, fault: str | None) -> Arm:
    return _pipeline(bench, "gpipe", 2 if fault else 8)


def _1f1b_uneven(bench: Bench, fault: str | None) -> Arm:
    return _pipeline(bench, "1f1b", 8, 1 if fault else 0)


def _1f1b_few(bench: Bench, fault: str | None) -> Arm:
    return _pipeline(bench, "1f1b", bench.num_ranks if fault else 8 * bench.num_ranks)


def _1f1b_loader(bench: Bench) -> Training:
    """The first stage waits for its batches."""
    step = _PipelineStep(bench, "1f1b", [_LAYERS] * bench.num_ranks, 8)

    def learn(batch: Any, _on: Set[str]) -> bool:
        step.learn(batch)
        return True

    def loader(num: int, on: Set[str]) -> Iterable[Any]:
        from benchmarks.labelled_runs.batches import sleeping

        return step.source.loader(num, sleeping(0.4) if "loader" in on and bench.rank == 0 else None)

    return Loop(learn, loader, kept=step)


def _of(name: str, what: str, make: Callable[[Bench], Training], fault: Fault | None = None, **options: Any) -> Job:
    faults = () if fault is None else (fault,)
    return Job(name, what, make, faults, num_ranks=2, imports=options.pop("imports", _MODELS), **options)


def _pp(name: str, what: str, make: Callable[[Bench], Training], fault: Fault | None = None, **options: Any) -> Job:
    pipelining = ("torch.distributed.pipelining",)
    return _of(name, what, make, fault, dimension="pp", imports=pipelining, **options)


_SAVES = Fault("saves", ("checkpoint",), (), "no checkpoint", "async|save|checkpoint", ranks=(0,))
_BY_SOCKETS = Fault(
    "sockets",
    ("communication",),
    ("wrong_transport", "slow_link"),
    "NVLink or PCIe peer to peer",
    "P2P|transport|NVLink|NCCL_",
    environment=SOCKETS,
)
_DETAILED = Fault(
    "detail",
    ("communication", "host_bound", "synchronization", "straggler"),
    (),
    "without TORCH_DISTRIBUTED_DEBUG",
    "TORCH_DISTRIBUTED_DEBUG",
    environment=DETAIL,
)
_FEW = Fault("few", ("pipeline_bubble",), ("few_micro_batches",), "more micro-batches", "micro.?batch", is_whole=False)

LAYOUT_JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        _of("ddp_plain", "GPT-2 under DDP, nothing wrong", _ddp_plain),
        _of("ddp_shared_gpu", "Llama under DDP, another process works on the GPU of rank 1", _shared_gpu,
            Fault("shared", ("contention", "straggler"), (), "no neighbour", ranks=(1,))),
        _of("run_ddp_saves", "Llama under DDP and `stepscope run`, rank 0 saves every 8 steps", _ddp_saves, _SAVES,
            period=_SAVE_PERIOD, is_launched=True),
        _of("fsdp_plain", "Llama under fully_shard, nothing wrong", _sharded_plain, losses=("communication",)),
        _of("tp_plain", "Llama by tp_plan=\"auto\", nothing wrong", _tensor_parallel_plain,
            losses=("communication", "host_bound"), dimension="tp"),
        _of("tp_python", "Llama by tp_plan=\"auto\", 150 ms of Python a step on rank 1", _tensor_parallel_python,
            Fault("python", ("host_bound", "straggler"), (), "no Python", ranks=(1,)), dimension="tp"),
        _pp("pp_gpipe_few", "GPipe, 2 micro-batches where 8 fit", arms(_gpipe_few), _FEW),
        _pp("pp_1f1b_uneven", "1F1B, the first stage has 3 layers and the last 1", arms(_1f1b_uneven),
            Fault("uneven", ("imbalance",), ("uneven_stages",), "even stages", "stage|layers", ranks=(0,))),
        _pp("pp_1f1b_plain", "1F1B, 16 micro-batches, nothing wrong",
            arms(lambda bench, _: _pipeline(bench, "1f1b", 16))),
        _pp("pp_1f1b_few", "1F1B, as many micro-batches as stages", arms(_1f1b_few), _FEW),
        _pp("pp_1f1b_loader", "1F1B, the first stage waits for its batches", _1f1b_loader,
            Fault("loader", ("data_loading",), ("starved",), "data ready", "num_workers|worker", ranks=(0,))),
        _of("ddp_sockets", "GPT-2 under DDP, NCCL over sockets", _ddp_plain, _BY_SOCKETS),
        _of("fsdp_sockets", "Llama under fully_shard, NCCL over sockets", _sharded_plain, _BY_SOCKETS),
        _of("fsdp_detail", "Llama under fully_shard, TORCH_DISTRIBUTED_DEBUG=DETAIL", _sharded_plain, _DETAILED),
        _of("ddp_detail", "GPT-2 under DDP, TORCH_DISTRIBUTED_DEBUG=DETAIL", _ddp_plain, _DETAILED),
    )
}  # fmt: skip
