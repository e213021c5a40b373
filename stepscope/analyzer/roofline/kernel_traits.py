"""Traits of kernels by name: operation, element type, layout, and whether the name is known at all.

Names come from the libraries that kernel_family lists. The narrowest operand gives the element type: a product of
FP4 and FP8 counts as FP4, whatever it accumulates and returns. To add a type, add a pattern for a lower-cased name to
`_TYPES`, the narrow before the wide: the first that matches wins.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from stepscope.analyzer.roofline.kernel_family import Family, family_of, is_communication, is_named

_NVJET_TYPES = {
    "o": "float4",
    "q": "float8",
    "r": "float8",
    "t": "bfloat16",
    "h": "float16",
}
"""First letter of the types in cuBLASLt's names: `nvjet_sm100_ootst_...` multiplies FP4, `nvjet_tst_...` bf16."""
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z]{3,5})_")

_TYPES = tuple(
    (re.compile(pattern), dtype)
    for pattern, dtype in (
        (r"e2m1|nvf?p4|mxf?p4|xf4_|fp4", "float4"),
        (r"e4m3|e5m2|float8|fp8|mxf?p8|f8f8|_f8_", "float8"),
        (r"_i8i8|int8|_imma|s8816", "int8"),
        (r"bf16|bfloat16|_b_?bs_", "bfloat16"),
        (r"tf32|tensorfloat|xf32|s1688(?!gemm_(b?f16))", "tfloat32"),
        (r"(?<!b)f16(?!_knob)|half|hgemm|h\d{3,6}(gemm|cudnn)|_h_?hs_|fp16", "float16"),
        (r"sgemm|f32f32|ffma|scudnn|<float|, float|_s_?b_|float32|fp32", "float32"),
        (r"dgemm|f64|<double|, double|float64", "float64"),
    )
)

_IMAGES = tuple(
    (re.compile(pattern), layout)
    for pattern, layout in (
        (r"nhwc.*nchw|nchw.*nhwc|nhwctonchw|nchwtonhwc", "changed"),
        (r"nhwc|ndhwc|channels_last", "channels_last"),
        (r"nchw|ncdhw", "channels_first"),
    )
)
_TRANSPOSES = re.compile(r"_([nt]{2})(?:_|\d|$)|_([nt]{3,4})$")
"""Of the operands of a product: as cuBLAS (tn), cuBLASLt's nvjet and CUTLASS 3 (tnt, with the result) write it."""


class KernelTraits(NamedTuple):
    """What a kernel's name tells.

    Attributes:
        family: the operation.
        dtype: type of the narrowest operand ("float4", "float8", "bfloat16", ...); None where the name leaves it open.
        layout: of images channels_last, channels_first or changed; of products the transposes of their operands.
        is_known: whether the name is one of a library that is known here.
    """

    family: Family
    dtype: str | None
    layout: str | None
    is_known: bool


@lru_cache(maxsize=4096)
def kernel_traits(name: str) -> KernelTraits:
    """Roofline: traits of a kernel that is not communication."""
    family, lowered = family_of(name), name.lower()
    known = is_named(name) or is_communication(name)
    return KernelTraits(family, _dtype(lowered), _layout(family, lowered), known)


def is_unknown(name: str) -> bool:
    """Whether nothing is known of a kernel by its name."""
    return not kernel_traits(name).is_known


def _dtype(name: str) -> str | None:
    if found := _NVJET.search(name):
        return _NVJET_TYPES.get(found.group(1)[0])
    if "native_sdpa" in name:  # its kernels name the width of their operands alone
        return "float8" if "fp8" in name or "e4m3" in name else ("bfloat16" if "bf16" in name else None)
    return next((dtype for pattern, dtype in _TYPES if pattern.search(name)), None)


def _layout(family: Family, name: str) -> str | None:
    if family in {Family.MATMUL, Family.ATTENTION}:
        found = _TRANSPOSES.search(name) if family is Family.MATMUL else None
        return None if found is None else found.group(1) or found.group(2)
    return next((layout for pattern, layout in _IMAGES if pattern.search(name)), None)
