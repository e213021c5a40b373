"""Knobs: the option that makes each known change, as the user writes it.

`TORCH_KNOBS` are those of plain torch. To name a trainer's own, give another mapping to `with_headroom`.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.vocabulary import Change

Knobs = Mapping[Change, str]
"""What to write for each change, with the present value where it is known."""

TORCH_KNOBS: Knobs = {
    Change.TF32_PRODUCTS: 'torch.set_float32_matmul_precision("high")',
    Change.TF32_CONVOLUTIONS: "torch.backends.cudnn.allow_tf32 = True",
    Change.AUTOCAST: 'torch.autocast("cuda", dtype=torch.bfloat16)',
    Change.FUSED_ATTENTION: 'F.scaled_dot_product_attention (attn_implementation="sdpa" in Hugging Face models)',
    Change.CHANNELS_LAST: "memory_format=torch.channels_last for the model and its inputs",
    Change.ALIGNED_SIZES: "sizes that are multiples of 64 (vocabulary, hidden, channels)",
    Change.FUSED_OPTIMIZER: "fused=True for the optimizer",
    Change.FUSED_KERNELS: "torch.compile(model)",
    Change.NO_RECOMPUTATION: "no activation checkpointing",
    Change.LARGER_BATCH: "a larger batch",
    Change.NO_SYNC: "model.no_sync() in all micro-batches but the last",
    Change.UNUSED_PARAMETERS: "find_unused_parameters=False",
    Change.LARGER_BUCKETS: "bucket_cap_mb=100",
    Change.REDUCED_PRECISION_GRADIENTS: "bf16_compress_hook for the gradients' all-reduce",
    Change.SHARDING_UNITS: "fully_shard() for each layer",
}
