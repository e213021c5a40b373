"""Settings of a training in the manifest run.json (`settings`): of torch, its loaders, models, wrappers and trainer.

None everywhere stands for unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """Run manifest: how a DataLoader that gave batches makes them.

    Attributes:
        trains: it gave batches while gradients were recorded.
        pin_memory: its batches are copied to pinned memory, for which there has to be a GPU.
        prefetch_factor: None without workers.
        kind: of its dataset: map or iterable.
        dataset: class of its dataset.
        in_memory: its dataset is a container that lies in memory, from which a batch takes next to no time to make;
            None of a dataset that may do anything.
        batch_size: samples of a batch; None where it makes no batches itself.
    """

    trains: bool
    num_workers: int
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    kind: str | None = None
    dataset: str | None = None
    in_memory: bool | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Run manifest: an optimizer, by its class. `fused` and `foreach` are None where torch chooses."""

    name: str
    fused: bool | None = None
    foreach: bool | None = None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Run manifest: a model that `prof.watch` was given, or that the training loop has in a variable.

    Attributes:
        parameter_types: as torch names them ("bfloat16"), sorted.
        memory_format: channels_last where a parameter has it, else contiguous; None without parameters of four
            dimensions.
        attention: implementation that a model of transformers is configured to use (eager, sdpa, flash_attention_2).
        compiled: it, or a part of it, is compiled by torch.compile.
        compile_mode: default, reduce-overhead or max-autotune, or the name of another backend.
        checkpoints_activations: activations are computed again in the backward pass; None where no part says it.
    """

    name: str
    parameter_types: list[str]
    memory_format: str | None = None
    attention: str | None = None
    compiled: bool = False
    compile_mode: str | None = None
    checkpoints_activations: bool | None = None


@dataclass(frozen=True, slots=True)
class DdpSettings:
    """Run manifest: options of DistributedDataParallel.

    Attributes:
        bucket_cap_mb: largest bucket in MiB.
        comm_hook: function that reduces a bucket in place of an all-reduce; None: an all-reduce as the gradients are.
    """

    bucket_cap_mb: float | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    broadcast_buffers: bool | None = None
    comm_hook: str | None = None


@dataclass(frozen=True, slots=True)
class FsdpSettings:
    """Run manifest: options of fully sharded data parallelism.

    Attributes:
        version: 1 of FullyShardedDataParallel, 2 of fully_shard.
        num_units: modules whose parameters are gathered together.
        num_layers: blocks of the model's longest list of layers; None without one.
        reshards_after_forward: parameters are gathered again for the backward pass.
        forward_prefetch: the next unit is gathered during the forward pass of one, as it was asked for.
        backward_prefetch: when the next unit is gathered in the backward pass: BACKWARD_PRE, BACKWARD_POST, explicit
            or None.
        param_dtype, reduce_dtype: of its mixed precision.
    """

    version: int
    num_units: int
    num_layers: int | None = None
    reshards_after_forward: bool | None = None
    forward_prefetch: bool | None = None
    backward_prefetch: str | None = None
    limit_all_gathers: bool | None = None
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    offloads_to_cpu: bool | None = None


@dataclass(frozen=True, slots=True)
class BackwardSettings:
    """Run manifest: what the graphs of some backward passes show: of the first step and of those before captures.

    Attributes:
        passes: backward passes of a step.
        synchronized_passes: those in which gradients of all ranks are reduced; None without a wrapper that does.
        attention: operators of `scaled_dot_product_attention` by implementation (flash, efficient, cudnn).
        is_causal: whether all of these mask the future by their own argument; None without one.
        num_softmax: other softmax operators, as attention without a fused operator has.
        num_convolutions: operators.
        num_compiled: parts of the graph that torch.compile made.
        compute_types: results of matrix products and convolutions, as torch names types, sorted.
        has_fixed_shapes: convolutions and matrix products had the same shapes in all passes looked at; None after one.
        is_whole: the whole graph was looked at, not only its last operators.
    """

    passes: int
    synchronized_passes: int | None = None
    attention: dict[str, int] = field(default_factory=dict)
    is_causal: bool | None = None
    num_softmax: int = 0
    num_convolutions: int = 0
    num_compiled: int = 0
    compute_types: list[str] = field(default_factory=list)
    has_fixed_shapes: bool | None = None
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Run manifest: the library that runs the training loop, with those of its arguments that change its speed.

    Attributes:
        name: transformers, lightning, deepspeed, accelerate or megatron.
        arguments: by the name that a user writes; numbers, truth values and words.
    """

    name: str
    version: str | None
    arguments: dict[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Run manifest: what the process of rank 0 tells of its own settings, between two steps; None: unknown.

    Attributes:
        anomaly_mode: on between two steps, or in a backward pass that was looked at.
        deterministic: torch's mode for deterministic algorithms: default (off), warn, error.
        float32_matmul_precision: highest, high or medium.
        autocast: type by kind of device ("cuda": "bfloat16") where autocast is on between two steps, or was entered in
            a step that was looked at.
        num_threads, num_interop_threads: of torch, inside an operator and between operators.
        gc_frozen: number of objects that the garbage collector never looks at; None at the start, as counting takes
            time.
        num_compiled_frames: functions that torch.compile has compiled.
        loaders: distinct ones, in the order of their first batches.
        iterables: classes of what `prof.data` was given that is not a DataLoader.
    """

    anomaly_mode: bool | None = None
    deterministic: str | None = None
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    cudnn_allow_tf32: bool | None = None
    matmul_allow_tf32: bool | None = None
    float32_matmul_precision: str | None = None
    autocast: dict[str, str] = field(default_factory=dict)
    num_threads: int | None = None
    num_interop_threads: int | None = None
    gc_enabled: bool | None = None
    gc_thresholds: list[int] = field(default_factory=list)
    gc_frozen: int | None = None
    num_compiled_frames: int | None = None
    loaders: list[LoaderSettings] = field(default_factory=list)
    iterables: list[str] = field(default_factory=list)
    optimizers: list[OptimizerSettings] = field(default_factory=list)
    models: list[ModelSettings] = field(default_factory=list)
    ddp: list[DdpSettings] = field(default_factory=list)
    fsdp: list[FsdpSettings] = field(default_factory=list)
    backward: BackwardSettings | None = None
    trainer: TrainerSettings | None = None
