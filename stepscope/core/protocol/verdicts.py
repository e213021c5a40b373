"""Live verdict of a run: message of training to the agent, and the document verdict.json in the run directory.

Whoever can read the telemetry of all ranks works it out; a process of each node sends it to its agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from stepscope.core.protocol.fields import FieldError, Reader, Word, _read_rank, flat_fields, read_object, read_word

LIVE_VERDICT_SCHEMA = "stepscope.live-verdict/1"
MAX_VERDICT_BYTES = 16 << 10
MAX_REASONS = 16
MAX_RANKS = 64
MAX_SUMMARY = 500


def _read_ratio(value: Any) -> float:
    """Read a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError("must be a number from 0 to 1")
    return float(value)


def _read_summary(value: Any) -> str:
    """Read one line of limited length."""
    if not isinstance(value, str) or len(value) > MAX_SUMMARY or not value.isprintable():
        raise ValueError(f"must be at most {MAX_SUMMARY} printable characters")
    return value


def _bounded_list_of(read_value: Reader, most: int, what: str) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError(f"must be a list of at most {most} {what}")
        return tuple(map(read_value, value))

    return read


Ratio = Annotated[float, _read_ratio]


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """Live verdict of a run while it trains.

    Attributes:
        time_ns: when it was worked out, ns since the epoch.
        cause, reasons: words of the vocabulary, or of a newer version's.
        bottleneck: whether a loss reaches a tenth of training time; None where unknown.
        share: of the training time of the steps behind it; None where unknown.
        ranks: the first of those that it is about; empty: all, or unknown.
        step_ms: mean of these steps.
        fixed_step_ms: the step without the cause, as predicted; None where unknown.
        num_steps: steps behind it.
    """

    type: ClassVar[str] = "verdict"
    run: Word
    time_ns: int
    cause: Word
    confidence: Ratio
    summary: Annotated[str, _read_summary] = ""
    reasons: Annotated[tuple[str, ...], _bounded_list_of(read_word, MAX_REASONS, "words")] = ()
    ranks: Annotated[tuple[int, ...], _bounded_list_of(_read_rank, MAX_RANKS, "ranks")] = ()
    bottleneck: bool | None = None
    share: Ratio | None = None
    step_ms: float | None = None
    fixed_step_ms: float | None = None
    num_steps: int | None = None


def live_verdict_document(verdict: LiveVerdict) -> dict[str, Any]:
    """The JSON document of a live verdict."""
    return {"schema": LIVE_VERDICT_SCHEMA} | dict(flat_fields(verdict))


def read_live_verdict(document: Any) -> LiveVerdict:
    """Read a live verdict's JSON document.

    Raises:
        FieldError: it is not one.
    """
    if not isinstance(document, dict) or document.get("schema") != LIVE_VERDICT_SCHEMA:
        raise FieldError(f"must have the schema {LIVE_VERDICT_SCHEMA}")
    return read_object(LiveVerdict, document)
