"""How large is one element of a tensor, by torch's or C++'s name of its type?"""

from __future__ import annotations

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
