"""Events of the metric history as one line: health events and verdicts of runs, from labels and values of metrics."""

from __future__ import annotations

from contextlib import suppress

from stepscope.core.hardware.health import Action
from stepscope.core.text.numbers import percent
from stepscope.core.text.wording import cause_words
from stepscope.core.vocabulary import Cause


def health_event_line(code: str, severity: str, action: str) -> str:
    """A health event with what to do; an action of a newer agent stays as it is."""
    with suppress(ValueError):
        action = Action(action).line
    return "; ".join(text for text in (f"{severity}: {code}" if severity else code, action) if text)


def verdict_event_line(cause: str, share: float) -> str:
    """The verdict of a run, by its share of training time; 0: there is no bottleneck."""
    with suppress(ValueError):
        cause = cause_words(Cause(cause))
    return f"{cause}: {percent(share)} of training time" if share > 0.0 else f"no bottleneck: {cause}"
