"""Families of kernels (matmul, convolution, attention, communication, ...), by name.

Names come from torch, cuBLAS, cuDNN, CUTLASS, Tensile/hipBLASLt, Composable Kernel, MIOpen, Triton and the inference
engines. To add a kernel, add a pattern for its lower-cased name to `_RULES`, the specific before the general: the
first that matches wins.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache


class Family(IntEnum):
    """Kinds of kernels; the codes are what KernelLimits.family holds."""

    OTHER = 0
    MATMUL = 1
    ATTENTION = 2
    CONVOLUTION = 3
    NORMALIZATION = 4
    POINTWISE = 5
    REDUCTION = 6
    """sums, means, norms, pooling: many elements in, few out"""
    EMBEDDING = 7
    """rows or elements gathered or scattered by index"""
    SOFTMAX = 8
    """softmax and the loss on top of it"""
    OPTIMIZER = 9
    """fused and foreach passes over parameter lists"""
    COPY_LIKE = 10
    """moves or fills, computes nothing: cat, transpose, cast, fill"""
    SORT = 11
    """sort, scan, top-k, unique"""
    TRITON = 12
    """generated or hand-written Triton without a more specific name"""
    RECURRENT = 13


_COMMUNICATION = (
    "nccl",  # every NVIDIA and AMD generation: ncclKernel_, ncclDevKernel_, nccldevkernel_
    "msccl",
    "cross_device_reduce",  # vLLM, SGLang, AITER
    "reduce_scatter_cross_device",
    "multimem_",  # torch symmetric memory
    "symmetric_memory::",
    "allreduce_fusion",  # FlashInfer, TensorRT-LLM
    "nvshmem",
    "alltoallv",
    "deep_ep::",
    "userbuffers",  # Transformer Engine
)
_ALL_REDUCE = ("all_reduce", "allreduce")
_SHOTS = ("one_shot", "oneshot", "two_shot", "twoshot")
"""Parts of the names of all-reduces of torch, TensorRT-LLM and QuickReduce."""
_PLANS_COMMUNICATION = "deep_ep::layout"
"""Computes a communication plan; moves nothing between GPUs."""

_RULES: tuple[tuple[str, Family], ...] = (
    # side kernels of the big operators first: they only move data
    (r"bwd_?(dot_do_o|convert|preprocess|postprocess)|splitkv_combine", Family.REDUCTION),
    (r"compute_dot_do_o|splitk_?reduce|reduce_wgrad|reduce_segments|bitmatrix_rows", Family.REDUCTION),
    (r"convert_dq_to|nchwtonhwc|nhwctonchw|addpadding|im2col|col2im|subtensorop|scalepackedtensor", Family.COPY_LIKE),
    (r"compute\w*offsetskernel|routing|bounds_check|find_long_segments|bucketize|offsets_range", Family.OTHER),
    (r"amp_update_scale|amp_foreach_non_finite", Family.POINTWISE),
    # Inductor's names contain the kind of kernel
    (r"^triton_tem", Family.MATMUL),
    (r"^triton_(red|per|mix)_", Family.REDUCTION),
    (r"^triton_(poi|for)_", Family.POINTWISE),
    (r"^triton_", Family.TRITON),
    # heavy arithmetic
    (
        r"flash_?(fwd|bwd|attn|attention|_?decode)|\bflash::|fmha|sdpa|attention|(^|_)attn_|mha_(fwd|bwd)",
        Family.ATTENTION,
    ),
    (r"reshape_and_cache|store_kvcache|rotary_embedding|act_and_mul|fp8_quant|quantize_with", Family.POINTWISE),
    (r"fused_rope|rope_(fwd|bwd|forward|backward)|_?(swi|ge)glu_|cast_transpose|dact_|cast_kernel", Family.POINTWISE),
    (r"scudnn|winograd|implicit_?gemm|[fdw]prop|dgrad|wgrad|fft2d|igemm_(fwd|bwd|wrw)|bwd_weight", Family.CONVOLUTION),
    (r"(^|[^a-z])(grouped_|naive_|depthwise_?|miopen)?conv(?!ert)|convolution|depthwise", Family.CONVOLUTION),
    (r"lstm|gru_|_rnn|rnn_", Family.RECURRENT),
    (
        r"(batch|layer|rms|group|instance|fused_add_rms)_?norm|normkernel|nn_normalization|gammabeta|rowwisemoments|welford",
        Family.NORMALIZATION,
    ),
    (r"\bbn_(fw|bw)|computefusedparams|computeinternalgradients|computegradoutput", Family.NORMALIZATION),
    (r"soft_?max|nll_?(loss|criterion)|classnll|cross_?entropy", Family.SOFTMAX),
    (r"(?<!fb)gemm|gemv|nvjet|^cijk_|matmul|xmma|^bmm_|_mm_kernel", Family.MATMUL),
    # memory traffic
    (r"embedding|sum_and_scatter|compute_grad_weight|krn_partial|num_of_partial_segments", Family.EMBEDDING),
    (r"adam|lamb_|sgd|adagrad|adafactor|multi_tensor_apply", Family.OPTIMIZER),
    (r"index|gather|scatter|masked_select", Family.EMBEDDING),
    (r"cub::|thrust|rocprim|radix_?sort|bitonic|sort|top_?k|scan|cumsum|cumprod|unique|searchsorted", Family.SORT),
    (r"elementwise|pointwise|epilogue::|dropout|distribution_|quant|fp8|clamp_|^scal_kernel", Family.POINTWISE),
    (r"catarray|(^|[_:])cat_|transpose|copy|memset|memcpy|fill|permute|pad_kernel|split_with", Family.COPY_LIKE),
    (
        r"reduce|pool|lpnorm|norm_kernel|^dot_kernel|finalizekernel|(^|[^a-z])(sum|mean|max|min|argmax)_",
        Family.REDUCTION,
    ),
)
_COMPILED = tuple((re.compile(pattern), family) for pattern, family in _RULES)

_RETURN_TYPE = re.compile(r"^(void |std::enable_if<.*>::type |static )+")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|_global__n_\d*")
_WRAPPER = re.compile(r"cutlass|device_kernel$|kentry$|cudnn.*::kernel$|internal::gemvx")
"""Functions that only run their template argument, whose name gives the work."""
_LIST_NORM = re.compile(r"lpnorm|maxops")
_LIST_COPY = re.compile(r"\bcopy")
_FILL_OR_COPY = re.compile(r"fillfunctor|_copy_kernel|::copy_|flip_kernel|roll_")
_ELEMENTWISE = re.compile(r"(^|[:_])elementwise_kernel")
_BY_INDEX = re.compile(r"index_elementwise|scatter_gather")


def _function(name: str) -> str:
    """The function's own part of a lower-cased name, as template and call arguments may name other work."""
    bare = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", name))
    cut = min((at for at in (bare.find("<"), bare.find("(")) if at > 0), default=len(bare))
    return bare if _WRAPPER.search(bare[:cut]) else bare[:cut]


def is_communication(name: str) -> bool:
    """Roofline, kernel family: whether a kernel moves data between GPUs.

    NCCL and RCCL, symmetric-memory and custom all-reduces, NVSHMEM, DeepEP. For kernels without recorded arguments.
    """
    name = name.lower()
    if any(word in name for word in _COMMUNICATION):
        return _PLANS_COMMUNICATION not in name
    return any(word in name for word in _ALL_REDUCE) and any(word in name for word in _SHOTS)


def is_elementwise(name: str) -> bool:
    """Whether a kernel is torch's loop over elements: each input read once, each output written once."""
    function = _function(name.lower())
    return bool(_ELEMENTWISE.search(function)) and not _BY_INDEX.search(function)


@lru_cache(maxsize=4096)
def family_of(name: str) -> Family:
    """Roofline: family of a kernel that is not communication; Family.OTHER for unknown names."""
    name = name.lower()
    if is_elementwise(name):
        return Family.COPY_LIKE if _FILL_OR_COPY.search(name) else Family.POINTWISE
    family = _rule(name)
    return _of_list_pass(name) if family is Family.OPTIMIZER else family or Family.OTHER


def is_named(name: str) -> bool:
    """Whether a kernel's name is one of those that are known here, also of known work of no family."""
    name = name.lower()
    return is_elementwise(name) or _rule(name) is not None


def _rule(name: str) -> Family | None:
    """Family by the first rule that a lower-cased name fits; None where none does."""
    function = _function(name)
    return next((family for pattern, family in _COMPILED if pattern.search(function)), None)


def _of_list_pass(name: str) -> Family:
    """Family of a pass over a list of tensors, by the functor in its template."""
    if _LIST_NORM.search(name):
        return Family.REDUCTION
    return Family.COPY_LIKE if _LIST_COPY.search(name) else Family.OPTIMIZER
