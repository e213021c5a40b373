"""Typed forms of one trace event; the decoder (msgspec) skips all members that they do not list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar, Union

import msgspec
from msgspec import Meta, Raw, Struct, field

from stepscope.trace.columns import NONE
from stepscope.trace.formats.kineto.fields import KNOWN_CATEGORY_NAMES

if TYPE_CHECKING:
    _KnownCategory = str
else:
    _KnownCategory = Literal[KNOWN_CATEGORY_NAMES]  # decoded to these very objects, whose hashes are cached

_MAX_DIGITS = 10
_COLLECTIVE = "Collective name"
_WAITED_RECORD = "wait_on_cuda_event_record_corr_id"
_Nothing = Annotated[int, Meta(ge=1, le=0)]
"""A type without values: text that holds such a member is refused."""
NO_TEXT: Raw = b""  # type: ignore[assignment]
"""Stands for a text that is not recorded; bytes, which join faster than a Raw."""

_Arguments = TypeVar("_Arguments")

LaunchKey = tuple[tuple[int, ...], tuple[int, ...], int, int]
"""Grid, block, registers per thread, shared memory, as recorded."""


class _PlainArguments(Struct, gc=False):
    """Arguments that become columns; raw ones are interned later, only for the rows that need them."""

    external_id: int = field(default=NONE, name="External id")
    correlation: int = NONE
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int = field(default=NONE, name="registers per thread")
    shared_memory: int = field(default=NONE, name="shared memory")
    num_bytes: int = field(default=NONE, name="bytes")
    input_dims: Raw = field(default=NO_TEXT, name="Input Dims")
    input_types: Raw = field(default=NO_TEXT, name="Input type")
    concrete_inputs: Raw = field(default=NO_TEXT, name="Concrete Inputs")
    legacy_external_id: int = field(default=NONE, name="external id")


class _UnnamedArguments(_PlainArguments, gc=False):
    """Arguments of rows that name neither a collective nor an awaited event: half the fields, faster to decode."""

    collective: _Nothing = field(default=None, name=_COLLECTIVE)  # type: ignore[assignment]  # always absent
    waited_record: _Nothing = field(default=None, name=_WAITED_RECORD)  # type: ignore[assignment]


class Arguments(_PlainArguments, gc=False):
    """All arguments, also those of collectives and of waits for events, which are parsed later."""

    collective: str | None = field(default=None, name=_COLLECTIVE)
    in_elements: Raw = field(default=NO_TEXT, name="In msg nelems")
    out_elements: Raw = field(default=NO_TEXT, name="Out msg nelems")
    dtype: Raw = field(default=NO_TEXT, name="dtype")
    group_name: Raw = field(default=NO_TEXT, name="Process Group Name")
    group_description: Raw = field(default=NO_TEXT, name="Process Group Description")
    group_ranks: Raw = field(default=NO_TEXT, name="Process Group Ranks")
    source_rank: Raw = field(default=NO_TEXT, name="Src Rank")
    destination_rank: Raw = field(default=NO_TEXT, name="Dst Rank")
    sequence: Raw = field(default=NO_TEXT, name="Seq")
    root_rank: Raw = field(default=NO_TEXT, name="Rank")
    communicator: Raw = field(default=NO_TEXT, name="Comms Id")
    waited_record: Raw = field(default=NO_TEXT, name=_WAITED_RECORD)
    waited_stream: Raw = field(default=NO_TEXT, name="wait_on_stream")


class ExactArguments(Arguments, gc=False):
    """`Arguments` and the rank that a merging tool wrote into every event."""

    merged_rank: Raw = field(default=NO_TEXT, name="rank")


class Event(Struct, gc=False):
    """One entry of traceEvents. `ts` and `dur` are microseconds, NaN where missing.

    An entry without a phase is not an event; text that holds one is decoded the slower way.
    """

    ph: Annotated[str, Meta(min_length=1)]
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float = nan
    dur: float = nan
    args: Arguments | None = None


class FastEvent(Struct, Generic[_Arguments], gc=False, tag_field="ph", tag="X"):
    """A complete event of a known category: nearly all are, and these decode with fewer objects."""

    ph: ClassVar[str] = "X"
    cat: _KnownCategory | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float = nan
    dur: float = nan
    args: _Arguments | None = None


_OTHER_PHASES = "BEbenisfPFMCDNOSTpvRcIt()"
"""All phases of the format but complete events."""
_OTHER_EVENTS = [
    msgspec.defstruct(f"OtherEvent{number}", [], namespace={"ph": phase}, gc=False, tag_field="ph", tag=phase)
    for number, phase in enumerate(_OTHER_PHASES)
]


class ExactEvent(Struct, gc=False):
    """An `Event` with every decimal of `ts`, for timestamps that float64 would round."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal = Decimal("NaN")
    dur: float = nan
    args: ExactArguments | None = None


class _Ranked(Struct, gc=False):
    pid: int | str | None = None
    args: ExactArguments | None = None


NO_ARGUMENTS = Arguments()

_DECODERS: tuple[Callable[[bytes | memoryview], list[Any]], ...] = (
    *(
        msgspec.json.Decoder(list[Union[(FastEvent[kind], *_OTHER_EVENTS)]]).decode  # type: ignore[valid-type]
        for kind in (_UnnamedArguments, Arguments)
    ),
    msgspec.json.Decoder(list[Event]).decode,
)
"""Fastest first; text that one refuses goes to the next."""
_DECODE_EXACT = msgspec.json.Decoder(list[ExactEvent], strict=False).decode


def _decimal(digits: str) -> Decimal:
    """The number, NaN where its exponent is beyond the range of Decimal."""
    try:
        return Decimal(digits)
    except InvalidOperation:
        return Decimal("NaN")


_FIELDS = {kind: msgspec.structs.fields(kind) for kind in (ExactEvent, ExactArguments)}
"""Computed once: it takes longer than converting an event."""

_DECODE_ANYTHING = msgspec.json.Decoder(float_hook=_decimal).decode
_DECODE_RANKS = msgspec.json.Decoder(list[_Ranked]).decode
_ENCODE = msgspec.json.Encoder(decimal_format="number").encode
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def decode_fast(array_text: bytes | memoryview) -> list[Event] | None:
    """All events of a JSON array, or None when the text or a type in it is not as expected.

    Usually complete events are FastEvents, and events of other phases hold their phase only.
    """
    for decode in _DECODERS:
        with suppress(*_UNREADABLE):
            return decode(array_text)
    return None


def decode_exact(array_text: bytes | memoryview) -> list[ExactEvent] | None:
    """All events with every decimal of their timestamps; slower. Numbers may be in quotes."""
    try:
        return _DECODE_EXACT(array_text)
    except _UNREADABLE:
        return None


def as_decoded(events: Sequence[Event]) -> list[ExactEvent]:
    """Events of `decode_fast` as exact ones, their timestamps in float64 precision."""
    return [
        ExactEvent(
            ph=event.ph,
            cat=event.cat,
            name=event.name,
            pid=event.pid,
            tid=event.tid,
            ts=Decimal(str(event.ts)),
            dur=event.dur,
            args=event.args,  # type: ignore[arg-type]  # the rank of merged files is read from the text
        )
        if event.ph == "X"
        else ExactEvent(event.ph)
        for event in events
    ]


def decode_leniently(array_text: bytes | memoryview) -> tuple[list[ExactEvent], int] | None:
    """Events of a well-formed array whatever types it holds, and how many of its items are not events.

    A field of an unexpected type counts as not recorded. None when the text is not a JSON array.
    """
    try:
        items = _DECODE_ANYTHING(array_text)
    except _UNREADABLE:
        return None
    if not isinstance(items, list):
        return None
    events = [_from_mapping(item) for item in items if isinstance(item, dict)]
    return events, len(items) - len(events)


def is_too_deep(array_text: bytes) -> bool:
    """Whether brackets nest deeper than the decoders follow: no repair changes that."""
    try:
        _DECODE_ANYTHING(array_text)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return False


def ranks_in_arguments(array_text: bytes) -> dict[int | str | None, int]:
    """Process -> rank in its events' arguments; a separate pass, as few traces have it and all would pay for it."""
    if b'"rank"' not in array_text:
        return {}
    with suppress(*_UNREADABLE):
        return ranks_in_events(_DECODE_RANKS(array_text))
    lenient = decode_leniently(array_text)  # an event of another phase may hold any type
    return ranks_in_events(lenient[0]) if lenient is not None else {}


def ranks_in_events(events: Sequence[ExactEvent | _Ranked]) -> dict[int | str | None, int]:
    """Process -> rank in the arguments of decoded events."""
    texts = [(event.pid, bytes(event.args.merged_rank)) for event in events if event.args is not None]
    return {pid: int(text) for pid, text in texts if text.isdigit() and len(text) < _MAX_DIGITS}


def is_usable(event: ExactEvent) -> bool:
    """Whether a complete event has valid times; other phases need none."""
    return event.ph != "X" or (event.ts.is_finite() and event.dur >= 0)


def _from_mapping(item: dict[str, Any]) -> ExactEvent:
    arguments = item.get("args")
    event: ExactEvent = _convert_fields(item, ExactEvent)
    if isinstance(arguments, dict):
        event.args = _convert_fields(arguments, ExactArguments)
    return event


def _convert_fields(item: dict[str, Any], target: type[Any]) -> Any:
    """Convert the fields that convert; leave the others at "not recorded"."""
    values: dict[str, Any] = {}
    for spec in _FIELDS[target]:
        if item.get(spec.encode_name) is None or spec.name == "args":
            continue
        value = item[spec.encode_name]
        if spec.type is Raw:
            values[spec.name] = Raw(_ENCODE(value))
            continue
        try:
            values[spec.name] = msgspec.convert(value, spec.type, strict=False)
        except (msgspec.ValidationError, RecursionError):
            if spec.type == (str | None):
                values[spec.name] = str(value)
    return target(**values)
