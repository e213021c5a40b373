"""Which colour has each heading, in light and in dark?

Okabe and Ito's colour-blind safe hues, darkened or lightened until each has a contrast of 3:1 with the page behind it
(WCAG 2.2, 1.4.11). A colour never stands alone: waiting is hatched, idleness is dotted, and every mark has a label.
"""

from __future__ import annotations

from stepscope.core.causes import Cause
from stepscope.core.headings import COMPUTE_HEADINGS, EXPOSED_COMMUNICATION_HEADINGS, Heading

PAGE_LIGHT = "#ffffff"
PAGE_DARK = "#242424"
"""The surface of a panel: Mantine's body in light, `dark.7` in dark."""

MIN_CONTRAST = 3.0

LIGHT: dict[Heading, str] = {
    Heading.COMPUTE_BOUND: "#0072b2",
    Heading.MEMORY_BOUND: "#00836a",
    Heading.LATENCY_BOUND: "#3a8fd0",
    Heading.COMPUTE_OTHER: "#5c7894",
    Heading.COMMUNICATION: "#d55e00",
    Heading.WAIT: "#b87a00",
    Heading.BUBBLE: "#c2579a",
    Heading.COMMUNICATION_UNSPLIT: "#94501f",
    Heading.COPY: "#2a95a5",
    Heading.DATA_LOADING: "#857500",
    Heading.CHECKPOINT: "#6a51a3",
    Heading.SYNCHRONIZATION: "#b23a48",
    Heading.HOST_BOUND: "#4a4a55",
    Heading.DEVICE_GAP: "#868e96",
    Heading.PROFILER: "#7c6f64",
    Heading.IDLE_OTHER: "#767676",
}

DARK: dict[Heading, str] = {
    Heading.COMPUTE_BOUND: "#3d9be0",
    Heading.MEMORY_BOUND: "#1fb890",
    Heading.LATENCY_BOUND: "#8cc4f2",
    Heading.COMPUTE_OTHER: "#8ba3bd",
    Heading.COMMUNICATION: "#f0792b",
    Heading.WAIT: "#e69f00",
    Heading.BUBBLE: "#e07fbf",
    Heading.COMMUNICATION_UNSPLIT: "#c98a5b",
    Heading.COPY: "#5fc7d6",
    Heading.DATA_LOADING: "#d6c94a",
    Heading.CHECKPOINT: "#a592dd",
    Heading.SYNCHRONIZATION: "#ee7280",
    Heading.HOST_BOUND: "#c3c3cf",
    Heading.DEVICE_GAP: "#8a929a",
    Heading.PROFILER: "#a89a8c",
    Heading.IDLE_OTHER: "#7d7d7d",
}

_HEADING_OF_CAUSE = {
    Cause.COMPUTE_BOUND: Heading.COMPUTE_BOUND,
    Cause.MEMORY_BOUND: Heading.MEMORY_BOUND,
    Cause.LATENCY_BOUND: Heading.LATENCY_BOUND,
    Cause.COMMUNICATION: Heading.COMMUNICATION,
    Cause.PIPELINE_BUBBLE: Heading.BUBBLE,
    Cause.DATA_LOADING: Heading.DATA_LOADING,
    Cause.HOST_BOUND: Heading.HOST_BOUND,
    Cause.SYNCHRONIZATION: Heading.SYNCHRONIZATION,
    Cause.STRAGGLER: Heading.WAIT,
    Cause.IMBALANCE: Heading.WAIT,
    Cause.CHECKPOINT: Heading.CHECKPOINT,
    Cause.COPY: Heading.COPY,
    Cause.DEVICE_GAP: Heading.DEVICE_GAP,
    Cause.PROFILER: Heading.PROFILER,
}


def contrast(first: str, second: str) -> float:
    """WCAG contrast of two '#rrggbb' colours, 1 to 21."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def ink(colour: str) -> str:
    """Black or white, whichever reads better on `colour`."""
    return max("#ffffff", "#101010", key=lambda candidate: contrast(candidate, colour))


def heading_of_cause(cause: Cause) -> Heading:
    """The heading whose colour a cause wears."""
    return _HEADING_OF_CAUSE.get(cause, Heading.IDLE_OTHER)


def pattern(heading: Heading) -> str:
    """The texture that tells families apart without colour: 'solid' computes, 'hatch' communicates, 'dots' idles."""
    if heading in COMPUTE_HEADINGS:
        return "solid"
    return "hatch" if heading in EXPOSED_COMMUNICATION_HEADINGS else "dots"


def variables(colours: dict[Heading, str]) -> str:
    """CSS declarations --heading-NAME and --ink-NAME of one theme, the one source for bars, chips and canvas."""
    return "".join(_variables(heading, colour) for heading, colour in colours.items())


def mark_rules() -> str:
    """CSS rules that give a mark of class ss-h-NAME or ss-edge-NAME its --colour and --ink."""
    return "".join(
        f".ss-h-{name},.ss-edge-{name}{{--colour:var(--heading-{name});--ink:var(--ink-{name})}}"
        for name in (heading.value for heading in LIGHT)
    )


def _variables(heading: Heading, colour: str) -> str:
    return f"--heading-{heading.value}:{colour};--ink-{heading.value}:{ink(colour)};"


def _luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
