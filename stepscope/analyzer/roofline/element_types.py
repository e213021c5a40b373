"""Sizes of tensor element types, by torch's or C++'s name or by a kernel's name."""

from __future__ import annotations

import re
from functools import lru_cache

_NAMES_BY_BYTES = {
    1: "bool, byte, char, signed char, unsigned char, float8_e4m3fn, c10::float8_e4m3fn, c10::float8_e4m3fnuz, "
    "float8_e5m2, c10::float8_e5m2, c10::float8_e5m2fnuz",
    2: "short, short int, half, c10::half, bfloat16, c10::bfloat16",
    4: "int, float",
    8: "long, long int, double, c10::complex<float>",
    16: "c10::complex<double>",
}
_BYTES = {name: size for size, names in _NAMES_BY_BYTES.items() for name in names.split(", ")}


def bytes_of_dtype(dtype: object) -> int | None:
    """Roofline: bytes of one tensor element; None for anything but a known type ("Scalar", "TensorList", damage)."""
    return _BYTES.get(dtype.lower()) if isinstance(dtype, str) else None


_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
"""Kernels that only move elements are compiled for the width of an element."""
_TYPE = re.compile(
    r"[<,]\s*(?:(?:unsigned|signed|const)\s+)?(?:c10::|__nv_|__hip_|hip_|__)*"
    r"(BFloat16|bfloat16|Half|half|float|double|long|int|short|bool|char|Float8_e4m3fn|Float8_e5m2)\b"
)


@lru_cache(maxsize=4096)
def element_bytes_of(kernel_name: str) -> int | None:
    """Roofline: bytes of one element of a kernel's tensors, by its first template argument that is a type; or None.

    The profiler records no type for lists of tensors, but the kernels that work on them are templates of it.
    """
    opaque = _OPAQUE.search(kernel_name)
    if opaque:
        return int(opaque.group(1))
    typed = _TYPE.search(kernel_name)
    return _BYTES[typed.group(1).lower()] if typed else None
