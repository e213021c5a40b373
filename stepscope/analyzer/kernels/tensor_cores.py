"""Does a kernel multiply on the tensor cores, and if not, could it?

Judged by names, as cuBLAS, cuDNN, CUTLASS, MAGMA and torch give them; None where a name does not tell. A list of words
that mean "tensor core" (torch-tb-profiler's way) takes `sm80_xmma_gemm_f32f32..._ffma` for one: here the words for the
plain units are looked for first.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PLAIN_UNITS = re.compile(
    r"simt|ffma|hfma|scudnn(?!.*s\d{4,6}cudnn)"
    r"|(^|[^0-9a-z])sgemm|_sgemm|magma_\w*gemm"
    r"|winograd|fft2d|[wd]grad_(alg\d_)?engine|(im|ex)plicit_convolve_sgemm|convolve_common_engine"
    r"|conv_depthwise|grouped_direct|cf32gemm|[cz]gemm",
    re.IGNORECASE,
)
_TENSOR_CORES = re.compile(
    r"tensorop|tensor\d+x\d+|[hsicdz]_?(884|1688|16816|161616|8816|16832)|hmma|imma|wgmma|wmma|nvjet"
    r"|(bf16|f16|tf32|e4m3|e5m2|fp8|i8)\w*_(bf16|f16|tf32|e4m3|e5m2|fp8|i8)?\w*gemm"
    r"|xmma_\w*gemm_\w*(bf16|f16|tf32|e4m3|e5m2|i8)|flash_(fwd|bwd)|cudnn_generated_fort_native_sdpa|fmha",
    re.IGNORECASE,
)
_SKINNY = re.compile(r"gemv|gemmk1|gemmsn|dot_kernel|splitk_?reduce", re.IGNORECASE)
"""Products with a vector: bound by memory on any unit."""
_UNALIGNED = re.compile(r"align[abc]?[12](?!\d)", re.IGNORECASE)


@lru_cache(maxsize=4096)
def uses_tensor_cores(name: str) -> bool | None:
    """Whether a matmul, attention or convolution kernel runs on the tensor cores; None when its name does not tell."""
    if _SKINNY.search(name):
        return None
    if "tensorop" not in name and _PLAIN_UNITS.search(name):
        return False
    return True if _TENSOR_CORES.search(name) else None


@lru_cache(maxsize=4096)
def is_unaligned(name: str) -> bool:
    """Whether a tensor-core kernel loads one or two elements at a time, for operands no wider load can be used on."""
    return bool(_UNALIGNED.search(name)) and uses_tensor_cores(name) is True
