"""Knobs: the options that change how fast a job is, as users of torch and of each trainer write them.

`KNOBS` is the one table of them: remedies and headroom name their keys, and `Options` writes them for a job, with the
value that is set now. Arguments of trainers are tested against the installed libraries, those of DeepSpeed and
Megatron-LM against lists of their names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from stepscope.core.documents.training_settings import LoaderSettings, TrainingSettings
from stepscope.core.vocabulary import Change

Value = str | int | float | bool | None


class Knob(NamedTuple):
    """An option, as it is written in plain torch and in the trainers that have one of their own.

    Attributes:
        torch: with {new} for its new value, and {optimizer} for the class of the job's optimizer.
        new: its new value where nobody knows a better one.
        present: its value now, by the settings of a run; None where unknown.
        switch: argument of the trainer that says "no" where the trainer has no part in it.
        done: present values with which nothing is left to set; empty where settings cannot vouch for that.
    """

    torch: str
    new: str = ""
    present: Callable[[TrainingSettings], Value] = lambda _: None
    transformers: str = ""
    lightning: str = ""
    accelerate: str = ""
    deepspeed: str = ""
    megatron: str = ""
    switch: str = ""
    done: tuple[Value, ...] = ()

    def of_library(self, library: str) -> str:
        """The option of a trainer; empty where it has none of its own."""
        return str(getattr(self, library, "")) if library in _LIBRARIES else ""


_LIBRARIES = ("transformers", "lightning", "accelerate", "deepspeed", "megatron")


def training_loader(settings: TrainingSettings) -> LoaderSettings | None:
    """The loader that trains; None where unknown, or where there are several."""
    loaders = [loader for loader in settings.loaders if loader.trains]
    return loaders[0] if len(loaders) == 1 else None


def _loader(name: str) -> Callable[[TrainingSettings], Value]:
    return lambda settings: getattr(training_loader(settings), name, None)


def _ddp(name: str) -> Callable[[TrainingSettings], Value]:
    return lambda settings: getattr(settings.ddp[0], name) if len(settings.ddp) == 1 else None


def _fsdp(name: str) -> Callable[[TrainingSettings], Value]:
    return lambda settings: getattr(settings.fsdp[0], name) if len(settings.fsdp) == 1 else None


def _model(name: str) -> Callable[[TrainingSettings], Value]:
    return lambda settings: getattr(settings.models[0], name) if len(settings.models) == 1 else None


def _autocast(settings: TrainingSettings) -> Value:
    types = settings.models[0].parameter_types if len(settings.models) == 1 else []
    return settings.autocast.get("cuda") or (types[0] if len(types) == 1 else None)


def _optimizer(name: str) -> Callable[[TrainingSettings], Value]:
    return lambda settings: getattr(settings.optimizers[0], name) if len(settings.optimizers) == 1 else None


def _unsharded_units(settings: TrainingSettings) -> Value:
    units = _fsdp("num_units")(settings)
    return None if units is None else f"{units} unit{'' if units == 1 else 's'}"


KNOBS: dict[str, Knob] = {
    "num_workers": Knob(
        "num_workers={new}",
        "4",
        _loader("num_workers"),
        transformers="TrainingArguments(dataloader_num_workers={new})",
        megatron="--num-workers {new}",
    ),
    "prefetch_factor": Knob(
        "prefetch_factor={new}",
        "4",
        _loader("prefetch_factor"),
        transformers="TrainingArguments(dataloader_prefetch_factor={new})",
    ),
    "pin_memory": Knob(
        "pin_memory={new}",
        "True",
        _loader("pin_memory"),
        transformers="TrainingArguments(dataloader_pin_memory={new})",
        done=(True,),
    ),
    "persistent_workers": Knob(
        "persistent_workers={new}",
        "True",
        _loader("persistent_workers"),
        transformers="TrainingArguments(dataloader_persistent_workers={new})",
        done=(True,),
    ),
    "batch_size": Knob(
        "batch_size={new}",
        "2x",
        _loader("batch_size"),
        transformers="TrainingArguments(per_device_train_batch_size={new})",
        deepspeed='"train_micro_batch_size_per_gpu": {new} in the DeepSpeed config',
        megatron="--micro-batch-size {new}",
    ),
    "tf32": Knob(
        'torch.set_float32_matmul_precision("high")',
        present=lambda settings: settings.float32_matmul_precision,
        transformers="TrainingArguments(tf32=True)",
        done=("high", "medium"),
    ),
    "tf32_convolutions": Knob(
        "torch.backends.cudnn.allow_tf32 = True",
        present=lambda settings: settings.cudnn_allow_tf32,
        done=(True,),
    ),
    "bf16": Knob(
        'torch.autocast("cuda", dtype=torch.bfloat16)',
        present=_autocast,
        transformers="TrainingArguments(bf16=True)",
        lightning='Trainer(precision="bf16-mixed")',
        accelerate='Accelerator(mixed_precision="bf16")',
        deepspeed='"bf16": {{"enabled": true}} in the DeepSpeed config',
        megatron="--bf16",
        done=("bfloat16", "bf16"),
    ),
    "attention": Knob(
        "F.scaled_dot_product_attention",
        present=_model("attention"),
        megatron="--attention-backend flash",
    ),
    "attention_of_any": Knob('F.scaled_dot_product_attention (attn_implementation="sdpa" of Hugging Face models)'),
    "attention_of_model": Knob('attn_implementation="sdpa"', present=_model("attention")),
    "channels_last": Knob(
        "model.to(memory_format=torch.channels_last), and the images too",
        present=_model("memory_format"),
        done=("channels_last",),
    ),
    "aligned_sizes": Knob(
        "sizes that are multiples of 64 (vocabulary, hidden, channels)",
        transformers="model.resize_token_embeddings(pad_to_multiple_of=64); hidden sizes that are multiples of 64",
        megatron="--make-vocab-size-divisible-by 128",
    ),
    "fused_optimizer": Knob(
        "{optimizer}(fused=True)",
        present=_optimizer("fused"),
        transformers='TrainingArguments(optim="adamw_torch_fused")',
        done=(True,),
    ),
    "compile": Knob(
        "torch.compile(model)",
        transformers="TrainingArguments(torch_compile=True)",
        accelerate='Accelerator(dynamo_backend="inductor")',
        done=(True,),
    ),
    "cuda_graphs": Knob(
        'torch.compile(model, mode="reduce-overhead")',
        present=_model("compile_mode"),
        transformers='TrainingArguments(torch_compile=True, torch_compile_mode="reduce-overhead")',
        megatron="--cuda-graph-impl local",
        done=("reduce-overhead", "max-autotune"),
    ),
    "no_recompute": Knob(
        "no activation checkpointing (torch.utils.checkpoint), or of fewer layers",
        present=_model("checkpoints_activations"),
        transformers="TrainingArguments(gradient_checkpointing=False)",
        megatron="--recompute-granularity selective, or without it",
    ),
    "no_sync": Knob(
        "model.no_sync() in all but the last backward pass of a step",
        lightning="Trainer(accumulate_grad_batches={new})",
        accelerate="accelerator.accumulate(model) in each backward pass of a step",
        new="4",
    ),
    "no_unused_search": Knob(
        "DistributedDataParallel(find_unused_parameters=False)",
        present=_ddp("find_unused_parameters"),
        transformers="TrainingArguments(ddp_find_unused_parameters=False)",
        lightning='Trainer(strategy="ddp")',
        accelerate="DistributedDataParallelKwargs(find_unused_parameters=False)",
        done=(False,),
    ),
    "bucket_size": Knob(
        "DistributedDataParallel(bucket_cap_mb={new})",
        "100",
        _ddp("bucket_cap_mb"),
        transformers="TrainingArguments(ddp_bucket_cap_mb={new})",
        lightning="DDPStrategy(bucket_cap_mb={new})",
        accelerate="DistributedDataParallelKwargs(bucket_cap_mb={new})",
        deepspeed='"zero_optimization": {{"reduce_bucket_size": 5e8}} in the DeepSpeed config',
        megatron="--ddp-bucket-size {new}000000",
    ),
    "bf16_reduction": Knob(
        "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        present=_ddp("comm_hook"),
        lightning="DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook)",
        accelerate="DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)",
        deepspeed='"communication_data_type": "bf16" in the DeepSpeed config',
        megatron="--grad-reduce-in-bf16",
        done=("bf16_compress_hook",),
    ),
    "overlap_reduction": Knob(
        "DistributedDataParallel or fully_shard, which reduce gradients during the backward pass",
        deepspeed='"zero_optimization": {{"overlap_comm": true}} in the DeepSpeed config',
        megatron="--overlap-grad-reduce",
        done=(True,),
    ),
    "fsdp_units": Knob(
        "fully_shard(layer) for each layer, then for the model",
        present=_unsharded_units,
        transformers='TrainingArguments(fsdp_config={{"transformer_layer_cls_to_wrap": [...]}})',
        lightning="FSDPStrategy(auto_wrap_policy={{Layer}})",
        accelerate='FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")',
    ),
    "fsdp_prefetch": Knob(
        "layer.set_modules_to_forward_prefetch([next]), and backward_prefetch too",
        present=_fsdp("forward_prefetch"),
        transformers='TrainingArguments(fsdp_config={{"forward_prefetch": True}})',
        accelerate="FullyShardedDataParallelPlugin(forward_prefetch=True)",
        megatron="--overlap-param-gather",
        done=(True,),
    ),
    "save_interval": Knob(
        "torch.distributed.checkpoint.async_save, or save every {new} steps",
        "500",
        transformers="TrainingArguments(save_steps={new})",
        lightning="ModelCheckpoint(every_n_train_steps={new})",
        megatron="--async-save, --save-interval {new}",
        switch="save_strategy",
    ),
    "eval_interval": Knob(
        "evaluate every {new} steps",
        "500",
        transformers="TrainingArguments(eval_steps={new})",
        lightning="Trainer(val_check_interval={new}, check_val_every_n_epoch=None)",
        megatron="--eval-interval {new}",
        switch="eval_strategy",
    ),
    "loss_scale": Knob(
        "GradScaler(init_scale={new})",
        "2.0**16",
        deepspeed='"fp16": {{"initial_scale_power": 16}} in the DeepSpeed config',
        megatron="--initial-loss-scale 65536",
    ),
    "freeze_garbage": Knob(
        "gc.freeze() after set-up, gc.disable() in the loop and one gc.collect() every few hundred steps",
        megatron="--manual-gc --manual-gc-interval 100",
    ),
    "empty_cache": Knob(
        "no torch.cuda.empty_cache() in the loop",
        transformers="TrainingArguments(torch_empty_cache_steps=None)",
        megatron="--empty-unused-memory-level 0",
    ),
    "filter_of_losses": Knob(
        "no .item() on losses",
        transformers="TrainingArguments(logging_nan_inf_filter=False)",
        done=(False,),
    ),
    "optimizer_on_gpu": Knob(
        "the optimizer on the GPU",
        deepspeed='"zero_optimization": {{"offload_optimizer": {{"device": "none"}}}} in the DeepSpeed config',
        megatron="no --optimizer-cpu-offload",
    ),
    "micro_batches": Knob(
        "more micro-batches a step, n_microbatches of the schedule",
        deepspeed='"gradient_accumulation_steps": a larger one in the DeepSpeed config',
        megatron="a larger --global-batch-size, or a smaller --micro-batch-size",
    ),
    "interleaving": Knob(
        "several stages a rank (ScheduleInterleaved1F1B)",
        megatron="--num-layers-per-virtual-pipeline-stage",
    ),
    "anomaly_mode": Knob(
        "torch.autograd.set_detect_anomaly(False)",
        present=lambda settings: settings.anomaly_mode,
        lightning="Trainer(detect_anomaly=False)",
    ),
    "deterministic": Knob(
        "torch.use_deterministic_algorithms(False)",
        present=lambda settings: settings.deterministic in {"warn", "error"} or None,
        transformers="TrainingArguments(full_determinism=False)",
        lightning="Trainer(deterministic=False)",
        megatron="no --deterministic-mode",
    ),
    "cudnn_benchmark": Knob(
        "torch.backends.cudnn.benchmark = True",
        present=lambda settings: settings.cudnn_benchmark,
        lightning="Trainer(benchmark=True)",
        done=(True,),
    ),
    "threads": Knob("torch.set_num_threads({new})", "fewer", lambda settings: settings.num_threads),
}
"""By the name that templates have in braces."""

CHANGES: dict[Change, str] = {
    Change.TF32_PRODUCTS: "tf32",
    Change.TF32_CONVOLUTIONS: "tf32_convolutions",
    Change.AUTOCAST: "bf16",
    Change.FUSED_ATTENTION: "attention",
    Change.CHANNELS_LAST: "channels_last",
    Change.ALIGNED_SIZES: "aligned_sizes",
    Change.FUSED_OPTIMIZER: "fused_optimizer",
    Change.FUSED_KERNELS: "compile",
    Change.NO_RECOMPUTATION: "no_recompute",
    Change.LARGER_BATCH: "batch_size",
    Change.NO_SYNC: "no_sync",
    Change.UNUSED_PARAMETERS: "no_unused_search",
    Change.LARGER_BUCKETS: "bucket_size",
    Change.REDUCED_PRECISION_GRADIENTS: "bf16_reduction",
    Change.SHARDING_UNITS: "fsdp_units",
}
"""The knob of each known change."""

_ARGUMENT = re.compile(r'\((?P<call>\w+)=|^--(?:no-)?(?P<flag>[\w-]+)|"(?P<section>\w+)": (?:\{"(?P<key>\w+)")?')


class Options(dict[str, str]):
    """Options of a job by knob, each with its present value; for `format_map` of templates.

    Args:
        settings: of the run; None where unknown.
        optimizer: class of the job's optimizer, where the settings do not tell it.
    """

    def __init__(self, settings: TrainingSettings | None = None, optimizer: str = "") -> None:
        super().__init__()
        self.settings = settings
        self.optimizer = optimizer or "Optimizer"
        self.library = settings.trainer.name if settings is not None and settings.trainer is not None else "torch"

    def __missing__(self, knob: str) -> str:
        return self.text(knob)

    def text(self, name: str, new: object = None, *, times: int | None = None, measured: int | None = None) -> str:
        """The option of a knob, with its present value behind it where that is another one.

        Args:
            new: its value; None: the one of the table.
            times: the new value is so many times the present one, where that is known.
            measured: the present value by what the job does, where no setting says it.
        """
        knob = KNOBS[self._own(name)]
        own = knob.of_library(self.library)
        if own and knob.switch and self._arguments.get(knob.switch) == "no":  # the trainer is told not to do it
            own = ""
        if self.library in _BESIDE_TORCH and self._has(own):  # it is done all the same: by the script itself
            own = ""
        argument = _argument(own) if own else None
        if argument is not None and argument in self._arguments:
            present = self._arguments[argument]
        else:
            present = knob.present(self.settings) if self.settings is not None else None
        if own and knob.switch:
            own, present, measured = self._interval(name, own, present, measured)
        present = measured if present is None else present
        is_number = isinstance(present, int | float) and not isinstance(present, bool)
        if times is not None and is_number and isinstance(present, int | float) and 1 <= present <= _MOST_COUNTED:
            new = _rounded_up(present * times)
        if new is None and isinstance(present, int | float) and knob.new.isdigit() and present >= int(knob.new):
            new = _rounded_up(2 * present) if present <= _MOST_COUNTED else None
        optimizer = (_optimizer("name")(self.settings) if self.settings is not None else None) or self.optimizer
        value = knob.new if new is None else new
        text = (own or knob.torch).format(new=value, optimizer=optimizer)
        is_shown = present is not None and str(present) != str(value) and present != ""
        return f"{text} (now {_plain(present)})" if is_shown else text

    def is_set(self, name: str) -> bool:
        """Whether the option has its new value already, by the settings of the run or the trainer's argument.

        What was read of the objects themselves stands before the argument.
        """
        knob = KNOBS[self._own(name)]
        present = knob.present(self.settings) if self.settings is not None else None
        if present in knob.done or not knob.done:
            return bool(knob.done)
        return self._has(knob.of_library(self.library)) and not isinstance(present, bool)

    def _has(self, option: str) -> bool:
        """Whether the trainer has the arguments of an option with these values already."""
        wanted = _values(option)
        known = self._arguments
        return bool(wanted) and all(name in known and known[name] == value for name, value in wanted.items())

    def _interval(self, name: str, own: str, present: Value, measured: int | None) -> tuple[str, Value, int | None]:
        """A trainer's option of an interval, its present value and the measured one, in the unit of that option.

        A float is a fraction: of an epoch in Lightning, of all steps in transformers. Lightning validates by batches;
        `check_val_every_n_epoch=None` lets the interval be longer than an epoch. transformers ignores the steps under
        the strategy "epoch".
        """
        switch = KNOBS[name].switch
        if self._arguments.get(switch) == "epoch":
            return own.replace("(", f'({switch}="steps", ', 1), None, measured
        if self.library == "lightning" and name == "eval_interval" and measured is not None:
            batches = self._arguments.get("accumulate_grad_batches")
            measured *= batches if isinstance(batches, int) else 1
        is_fraction = isinstance(present, float) and 0 < present <= 1
        return own, None if is_fraction else present, measured

    def less_often(self, times: int | None, interval: int | None) -> Options:
        """The options with intervals of checkpoints and evaluations that many times longer.

        Args:
            interval: the present one in steps, as it was measured; None where unknown.
        """
        options = Options(self.settings, self.optimizer)
        options.update(self)
        options.update(
            {knob: self.text(knob, times=times, measured=interval) for knob in ("save_interval", "eval_interval")}
        )
        return options

    def of_changes(self) -> dict[Change, str]:
        """The option that makes each known change that is not made yet."""
        return {
            change: self.text(knob, times=2 if change is Change.LARGER_BATCH else None)
            for change, knob in CHANGES.items()
            if not self.is_set(knob)
        }

    def _own(self, name: str) -> str:
        """Models of transformers have attention as an argument."""
        if name != "attention" or self.library == "megatron":
            return name
        if self.settings is None or not self.settings.models:
            return "attention_of_any"
        return "attention_of_model" if any(model.attention for model in self.settings.models) else name

    @property
    def _arguments(self) -> Mapping[str, Value]:
        trainer = self.settings.trainer if self.settings is not None else None
        return {} if trainer is None else trainer.arguments


def _argument(option: str) -> str | None:
    """Name of a trainer's argument in an option, as settings have it."""
    found = _ARGUMENT.search(option.replace("{{", "{"))
    if found is None:
        return None
    if found["section"]:
        return ".".join(filter(None, (found["section"], found["key"])))
    return found["call"] or found["flag"].replace("-", "_")


_VALUE = re.compile(r"""[(,]\s*(\w+)=("[^"]*"|True|False|None)(?=[,)])""")
_FLAG = re.compile(r"^--(?!no-)([\w-]+)$")
_KEY = re.compile(r'"(\w+)": \{"(\w+)": (true|false|"[^"]*")\}|^"(\w+)": (true|false|"[^"]*")')
_LITERALS: dict[str, Value] = {"True": True, "False": False, "None": None, "true": True, "false": False}


def _values(option: str) -> dict[str, Value]:
    """Values of a trainer's arguments in an option, by name; without those that are left open."""
    text = option.replace("{{", "{").replace("}}", "}")
    found = {match[1]: match[2] for match in _VALUE.finditer(text)}
    for match in _KEY.finditer(text):
        found[f"{match[1]}.{match[2]}" if match[1] else match[4]] = match[3] or match[5]
    if flag := _FLAG.match(text):
        found[flag[1].replace("-", "_")] = "True"
    return {name: _LITERALS.get(value, value.strip('"')) for name, value in found.items()}


_BESIDE_TORCH = frozenset({"transformers", "lightning", "accelerate"})
"""Trainers whose scripts can do by themselves what an argument of theirs turns off or on."""

_MOST_COUNTED = 1e12
"""Largest number of steps or samples; a larger one is of a damaged run."""


def _rounded_up(number: float) -> int:
    """A number of steps with two digits that are not 0 at most."""
    unit = int(10 ** max(len(str(round(number))) - 2, 0))
    return math.ceil(number / unit) * unit


def _plain(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
