"""Files of views: data alone, checked on reading, refused as a whole where anything is wrong.

A file is, one after the other: a magic line; the length of the header (4 bytes, little-endian); the header, JSON
(`ViewHeader`); the body, typed msgpack under zlib; and the SHA-256 of all that. Arrays travel as their differences or
values in the smallest integer type that holds them, and come back in their own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

import stepscope
from stepscope.core.errors import DataError
from stepscope.trace.columns import narrow
from stepscope.workflow.inputs.trace_stamps import TraceStamp

VIEW_SCHEMA = "stepscope.view/1"
MAGIC = b"\x89stepscope view\r\n"
MAX_FILE_BYTES = 128 << 20
MAX_BODY_BYTES = 1 << 30
"""A view of a 500 MB trace of 300,000 segments is a fiftieth of that."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<I")
_ARRAY = 1
"""msgpack extension type of an array."""
_WORTH_DIFFERENCES = 64
"""Entries from which the differences of an array are tried."""
_DTYPES = frozenset(f"{order}{kind}" for order in "<|" for kind in ("b1", "i1", "i2", "i4", "i8", "f4", "f8"))
_MAX_DIMENSIONS = 2

Array = npt.NDArray[Any]
Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """With what a view was made: views of other options are others.

    Attributes:
        kind: of the body: view | calibration.
        whole_file: as in view_rank.
        begins: gap in ns, step and time of the beginning that the job's ranks have in common.
        rank, rank_source: that a trace was given which does not give its own.
        inputs: digest of what else the body was made from.
    """

    kind: str = "view"
    whole_file: bool = False
    begins: tuple[int, int | None, int | None] | None = None
    rank: int | None = None
    rank_source: str | None = None
    inputs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewHeader:
    """Header of a view's file.

    Attributes:
        layout: digest of the body's types.
        maker: digest of the code that makes views.
        version: of stepscope, for people.
        traces: name and stamp of each trace that the body was made from.
        made_ns: when.
        replaces_trace: always false; `rank{r}.removed.json` says which traces were removed.
        own_ms, communication_ms: time a step that the rank spent itself, and in communication and waits.
        breakdown_ms: time a step by category, for choosing the traces to keep. Of several ranks in a trace these times
            are those of the one that spent most itself.
    """

    layout: str
    maker: str
    version: str
    traces: list[tuple[str, TraceStamp]]
    options: ViewOptions
    made_ns: int
    body_bytes: int
    replaces_trace: bool = False
    own_ms: float | None = None
    communication_ms: float | None = None
    breakdown_ms: dict[str, float] = field(default_factory=dict)
    schema: str = VIEW_SCHEMA


class UnusableViewError(DataError):
    """A view's file is damaged, or of another kind or version."""


class ViewFormat(Generic[Body]):
    """Encoding and checked decoding of files with one type of body."""

    def __init__(self, kind: type[Body]) -> None:
        self._kind = kind
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)

    @property
    def layout(self) -> str:
        """Digest of the body's types."""
        return _layout(cast(Hashable, self._kind))

    @property
    def _decoder(self) -> msgspec.msgpack.Decoder[Body]:
        return _decoder(cast(Hashable, self._kind))

    def encode(
        self,
        body: Body,
        traces: list[tuple[str, TraceStamp]],
        options: ViewOptions,
        *,
        made_ns: int,
        own_ms: float | None = None,
        breakdown_ms: dict[str, float] | None = None,
    ) -> bytes:
        """The file of a body.

        Raises:
            UnusableViewError: it is too large, or holds text that no file can.
        """
        try:
            content = self._encoder.encode(body)
        except (UnicodeEncodeError, TypeError) as error:
            raise UnusableViewError(f"cannot be encoded ({error})", what_next="leave it out") from error
        if len(content) > MAX_BODY_BYTES:
            raise UnusableViewError("is too large to be kept", what_next="leave it out")
        header = ViewHeader(
            layout=self.layout,
            maker=maker(),
            version=stepscope.__version__,
            traces=traces,
            options=options,
            made_ns=made_ns,
            body_bytes=len(content),
            own_ms=own_ms,
            communication_ms=None if own_ms is None else sum((breakdown_ms or {}).values()) - own_ms,
            breakdown_ms=breakdown_ms or {},
        )
        return _joined(header, isal_zlib.compress(content, 1))

    def decode(self, header: ViewHeader, packed: bytes, *, where: str) -> Body:
        """The body of a file that `split` took apart.

        Raises:
            UnusableViewError: it is not of this type.
        """
        if header.layout != self.layout:
            raise UnusableViewError(f"was made by stepscope {header.version}, which keeps other data", where=where)
        try:
            inflater = isal_zlib.decompressobj()
            content = inflater.decompress(packed, header.body_bytes + 1)
            if len(content) != header.body_bytes or not inflater.eof or inflater.unused_data:
                raise ValueError("the body has another length than its header says")
            body = self._decoder.decode(content)
        except (isal_zlib.error, ValueError, TypeError, OverflowError, RecursionError) as error:  # type: ignore[misc]
            raise UnusableViewError(f"is damaged ({error})", where=where) from error
        return body


def split(content: bytes, *, where: str) -> tuple[ViewHeader, bytes]:
    """Take a view's file apart: its header and its packed body.

    Raises:
        UnusableViewError: it is not a whole file of this schema.
    """
    if not content.startswith(MAGIC):
        raise UnusableViewError("is not a file of views", where=where)
    if hashlib.sha256(memoryview(content)[:-_DIGEST_BYTES]).digest() != content[-_DIGEST_BYTES:]:
        raise UnusableViewError("is damaged: its checksum is another", where=where)
    begin = len(MAGIC) + _LENGTH.size
    try:
        (length,) = _LENGTH.unpack_from(content, len(MAGIC))
        text = content[begin : begin + length]
        schema = msgspec.json.decode(text, type=_SchemaOnly).schema
        if schema != VIEW_SCHEMA:
            raise UnusableViewError(f"has schema {schema!r}, this version reads {VIEW_SCHEMA!r}", where=where)
        header = msgspec.json.decode(text, type=ViewHeader)
    except (struct.error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UnusableViewError(f"is damaged ({error})", where=where) from error
    if not 0 <= header.body_bytes <= MAX_BODY_BYTES:
        raise UnusableViewError(f"claims a body of {header.body_bytes:,} bytes", where=where)
    return header, content[begin + length : -_DIGEST_BYTES]


def with_header(content: bytes, **changes: Any) -> bytes:
    """The same file under a changed header.

    Raises:
        UnusableViewError: as `split`.
    """
    header, packed = split(content, where="a view")
    return _joined(replace(header, **changes), packed)


def _joined(header: ViewHeader, packed: bytes) -> bytes:
    text = msgspec.json.encode(header)
    content = b"".join((MAGIC, _LENGTH.pack(len(text)), text, packed))
    return content + hashlib.sha256(content).digest()


class _SchemaOnly(msgspec.Struct):
    schema: str


@cache
def _decoder(kind: Hashable) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_array, ext_hook=_extension)


class _PackedArray(msgspec.Struct, array_like=True, frozen=True):
    """An array: its type and shape, how its entries are stored, and those.

    Attributes:
        stored: type of the stored entries: the values, or from the second on the differences to the one before.
        first: the first value, where differences are stored.
    """

    dtype: str
    shape: tuple[int, ...]
    stored: str
    first: int | None
    content: bytes


def _encode_array(value: object) -> object:
    """Array or scalar of numpy as msgpack."""
    if isinstance(value, np.ndarray) and value.dtype.str in _DTYPES and value.ndim <= _MAX_DIMENSIONS:
        dtype, shape, entries, first = value.dtype.str, value.shape, value.ravel(), None
        if value.dtype.kind == "i":
            entries, first = _smallest(entries)
        packed = _PackedArray(dtype, shape, entries.dtype.str, first, np.ascontiguousarray(entries).tobytes())
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(packed))
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not part of a view")


def _smallest(values: Array) -> tuple[Array, int | None]:
    """The entries to store for integers, and the first value if they are differences."""
    plain = narrow(values)
    if len(values) < _WORTH_DIFFERENCES or plain.dtype.itemsize == 1:
        return plain, None
    low, high = int(values.min()), int(values.max())
    if high - low >= 1 << 62:
        return plain, None
    wide: npt.NDArray[np.int64] = values.astype(np.int64)
    differences = narrow(wide[1:] - wide[:-1])
    return (differences, int(values[0])) if differences.dtype.itemsize < plain.dtype.itemsize else (plain, None)


def _extension(code: int, content: memoryview) -> Array:
    if code != _ARRAY:
        raise ValueError(f"unknown extension {code}")
    packed = msgspec.msgpack.decode(content, type=_PackedArray)
    if packed.dtype not in _DTYPES or packed.stored not in _DTYPES or len(packed.shape) > _MAX_DIMENSIONS:
        raise ValueError("an array of a type that no view has")
    stored = np.frombuffer(packed.content, packed.stored)
    size = int(np.prod(packed.shape, dtype=object)) if packed.shape else 1
    if min(packed.shape, default=0) < 0 or size != len(stored) + (packed.first is not None):
        raise ValueError("an array of another size than it says")
    dtype = np.dtype(packed.dtype)
    if packed.first is None:
        if stored.dtype.kind != dtype.kind:
            raise ValueError("an array of another type than it says")
        return stored.astype(dtype).reshape(packed.shape)
    if stored.dtype.kind != "i" or dtype.kind != "i":
        raise ValueError("differences of other than integers")
    values = np.empty(size, np.int64)
    values[0], values[1:] = packed.first, stored
    return np.cumsum(values, out=values).astype(dtype, copy=False).reshape(packed.shape)


_KINDS = {np.signedinteger: "i", np.integer: "i", np.floating: "f", np.bool_: "b"}


def _decode_array(wanted: type[Any], value: object) -> Array:
    """The array of a field; its annotation says of which kind it must be."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected an array, got {type(value).__name__}")
    if value.dtype.kind not in _kinds_of(cast(Hashable, wanted)):
        raise TypeError(f"expected an array of {wanted}, got one of {value.dtype}")
    return value


@cache
def _kinds_of(wanted: Hashable) -> str:
    of_dtype = get_args(wanted)[-1]
    scalar = get_args(of_dtype)[0]
    scalar = get_origin(scalar) or scalar
    return "".join(kind for base, kind in _KINDS.items() if issubclass(scalar, base)) or "bif"


@cache
def maker() -> str:
    """Digest of the code that makes views: another one may make others of the same trace."""
    digest = hashlib.sha256(stepscope.__version__.encode())
    root = Path(stepscope.__file__).parent
    for part in ("core", "trace", "analyzer"):
        for path in sorted((root / part).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


@cache
def _layout(kind: Hashable) -> str:
    """Digest of a type and all types in it: names and types of fields, members of enums."""
    lines: dict[str, str] = {}
    _describe(kind, lines)
    return hashlib.sha256("\n".join(f"{name}: {lines[name]}" for name in sorted(lines)).encode()).hexdigest()[:32]


def _describe(kind: Any, lines: dict[str, str]) -> str:
    arguments = [_describe(one, lines) for one in get_args(kind)]
    origin = get_origin(kind)
    if origin is not None or isinstance(kind, UnionType):
        return f"{getattr(origin, '__name__', 'union')}[{', '.join(arguments)}]"
    name = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"
    if not isinstance(kind, type) or name in lines:
        return name
    if issubclass(kind, Enum):
        lines[name] = ", ".join(f"{one.name}={one.value}" for one in kind)
    elif dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        lines[name] = ""
        fields = {field: _describe(hint, lines) for field, hint in get_type_hints(kind).items()}
        lines[name] = ", ".join(f"{field}: {one}" for field, one in fields.items())
    return name
