"""Sizes of tensor element types, by torch's or C++'s name or by a kernel's name.

Kernel types: Lists of tensors are recorded without their type, but the kernels that work on them are templates of it.
"""

from __future__ import annotations

import re
from functools import lru_cache

_BYTES = {
    "double": 8,
    "float": 4,
    "half": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "float8_e4m3fn": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "c10::float8_e5m2": 1,
    "c10::float8_e5m2fnuz": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "short int": 2,
    "char": 1,
    "signed char": 1,
    "byte": 1,
    "unsigned char": 1,
    "bool": 1,
}


def bytes_of_dtype(dtype: object) -> int | None:
    """Bytes of one element; None for what names no type that we know ("Scalar", "TensorList", damage)."""
    return _BYTES.get(dtype.lower()) if isinstance(dtype, str) else None


_WIDTHS = {
    "BFloat16": 2,
    "bfloat16": 2,
    "Half": 2,
    "half": 2,
    "float": 4,
    "double": 8,
    "long": 8,
    "int": 4,
    "short": 2,
    "bool": 1,
    "char": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
}
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
"""How kernels that only move elements are compiled: by the elements' width."""
_TYPE = re.compile(
    r"[<,]\s*(?:(?:unsigned|signed|const)\s+)?(?:c10::|__nv_|__hip_|hip_|__)*(" + "|".join(_WIDTHS) + r")\b"
)


@lru_cache(maxsize=4096)
def element_bytes_of(kernel_name: str) -> int | None:
    """Bytes of one element of what a kernel works on, by its first template argument that is a type; else None."""
    opaque = _OPAQUE.search(kernel_name)
    if opaque:
        return int(opaque.group(1))
    typed = _TYPE.search(kernel_name)
    return _WIDTHS[typed.group(1)] if typed else None
