"""What remedies have to know of a job: its options, and what would contradict advice."""

from __future__ import annotations

from stepscope.analyzer.knobs import KNOBS, Options, training_loader
from stepscope.core.documents.training_settings import LoaderSettings, TrainingSettings

_MANY_LAUNCHES = 0.4
"""Share of all kernels from which on an optimizer updates one parameter after the other: foreach takes some ten kernels
for thirty parameters each, and the passes through the model at least five for each parameter."""
_SIXTEEN_BITS = frozenset({"bfloat16", "float16", "bf16", "fp16", "half"})


class Advice:
    """What remedies have to know of a job: its options, and what would contradict advice.

    Args:
        settings: of the run; None where unknown.
        on_cpu: the job has no GPU.
        with_stacks: the profiled steps have Python stacks.
        backend: that carries the communication ("nccl", "gloo"); empty where unknown.
        affinity: the processors that a rank may use; empty where unknown.
        micro_batches: of a pipeline's step; None without one.
        optimizer: class of the optimizer by a trace; empty where unknown.
        optimizer_launches: share of the kernels that the optimizer launches.
        product_type: element type of most FLOPs of matrix products, as far as a trace shows it.
        copies_to_host: most pageable copies are from the GPU to the host.
        has_free_cores: launching threads hardly ever wait for a core.
    """

    def __init__(
        self,
        settings: TrainingSettings | None = None,
        *,
        on_cpu: bool = False,
        with_stacks: bool = False,
        backend: str = "",
        affinity: str = "",
        micro_batches: int | None = None,
        optimizer: str = "",
        optimizer_launches: float = 0.0,
        product_type: str | None = None,
        copies_to_host: bool = False,
        has_free_cores: bool = False,
    ) -> None:
        self.options = Options(settings, optimizer)
        self.options["affinity"] = affinity
        if micro_batches is not None:
            self.options["micro_batches"] = f"{self.options.text('micro_batches')} (now {micro_batches})"
        self.settings = settings or TrainingSettings()
        self.on_cpu = on_cpu
        self.with_stacks = with_stacks
        self.backend = backend or ("gloo" if on_cpu else "")
        self.affinity = affinity
        self.optimizer_launches = optimizer_launches
        self.product_type = product_type
        self.copies_to_host = copies_to_host
        self.has_free_cores = has_free_cores
        self.options["optimizer_launches"] = f"{optimizer_launches:.0%}"

    @property
    def loader(self) -> LoaderSettings | None:
        return training_loader(self.settings)

    @property
    def has_worker_loader(self) -> bool:
        """Whether more workers alone make more batches, as far as is known."""
        is_stream = self.loader is not None and self.loader.kind == "iterable"
        return not (is_stream or self.has_plain_iterable or self.has_default_batches)

    @property
    def library(self) -> str:
        return self.options.library

    def is_set(self, knob: str) -> bool:
        """Whether nothing is left to set of a knob; other keys of templates are no knobs."""
        return knob in KNOBS and self.options.is_set(knob)

    @property
    def is_compiled(self) -> bool:
        return any(model.compiled for model in self.settings.models) or bool(self.settings.num_compiled_frames)

    @property
    def has_cuda_graphs(self) -> bool:
        return any(model.compile_mode in {"reduce-overhead", "max-autotune"} for model in self.settings.models)

    @property
    def has_slow_optimizer(self) -> bool:
        """Whether most kernels are those of an optimizer that updates one parameter after the other."""
        is_fused = any(optimizer.fused for optimizer in self.settings.optimizers)
        return not is_fused and self.optimizer_launches >= _MANY_LAUNCHES

    @property
    def reduces_often(self) -> bool:
        backward = self.settings.backward
        return backward is not None and (backward.synchronized_passes or 0) > 1

    @property
    def computes_in_16_bits(self) -> bool:
        backward = self.settings.backward
        types = backward.compute_types if backward is not None else [self.product_type] if self.product_type else []
        return bool(types) and set(types) <= _SIXTEEN_BITS

    @property
    def has_plain_iterable(self) -> bool:
        """Whether no DataLoader makes the batches."""
        return bool(self.settings.iterables) and not self.settings.loaders

    @property
    def has_eager_attention(self) -> bool:
        return any(model.attention == "eager" for model in self.settings.models)

    @property
    def has_default_batches(self) -> bool:
        """Whether the dataset lies in memory and a DataLoader without workers gathers its samples one by one."""
        return self.loader is not None and bool(self.loader.in_memory) and self.loader.num_workers == 0
