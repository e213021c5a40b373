"""Colours and textures of the categories, in light and dark.

Okabe and Ito's colour-blind safe hues, darkened or lightened until each has a contrast of 3:1 with the page behind it
(WCAG 2.2, 1.4.11). A colour never stands alone: waiting is hatched, idleness is dotted, and every mark has a label.
"""

from __future__ import annotations

from stepscope.core.vocabulary.categories import COMPUTE_CATEGORIES, EXPOSED_COMMUNICATION_CATEGORIES, TimeCategory
from stepscope.core.vocabulary.causes import Cause

PAGE_LIGHT = "#ffffff"
PAGE_DARK = "#242424"
"""The surface of a panel: Mantine's body in light, `dark.7` in dark."""

MIN_CONTRAST = 3.0

LIGHT: dict[TimeCategory, str] = {
    TimeCategory.COMPUTE_BOUND: "#0072b2",
    TimeCategory.MEMORY_BOUND: "#00836a",
    TimeCategory.LATENCY_BOUND: "#3a8fd0",
    TimeCategory.COMPUTE_OTHER: "#5c7894",
    TimeCategory.COMMUNICATION: "#d55e00",
    TimeCategory.WAIT: "#b87a00",
    TimeCategory.BUBBLE: "#c2579a",
    TimeCategory.COMMUNICATION_UNSPLIT: "#94501f",
    TimeCategory.COPY: "#2a95a5",
    TimeCategory.DATA_LOADING: "#857500",
    TimeCategory.CHECKPOINT: "#6a51a3",
    TimeCategory.SYNCHRONIZATION: "#b23a48",
    TimeCategory.HOST_BOUND: "#4a4a55",
    TimeCategory.DEVICE_GAP: "#868e96",
    TimeCategory.PROFILER: "#7c6f64",
    TimeCategory.IDLE_OTHER: "#767676",
}

DARK: dict[TimeCategory, str] = {
    TimeCategory.COMPUTE_BOUND: "#3d9be0",
    TimeCategory.MEMORY_BOUND: "#1fb890",
    TimeCategory.LATENCY_BOUND: "#8cc4f2",
    TimeCategory.COMPUTE_OTHER: "#8ba3bd",
    TimeCategory.COMMUNICATION: "#f0792b",
    TimeCategory.WAIT: "#e69f00",
    TimeCategory.BUBBLE: "#e07fbf",
    TimeCategory.COMMUNICATION_UNSPLIT: "#c98a5b",
    TimeCategory.COPY: "#5fc7d6",
    TimeCategory.DATA_LOADING: "#d6c94a",
    TimeCategory.CHECKPOINT: "#a592dd",
    TimeCategory.SYNCHRONIZATION: "#ee7280",
    TimeCategory.HOST_BOUND: "#c3c3cf",
    TimeCategory.DEVICE_GAP: "#8a929a",
    TimeCategory.PROFILER: "#a89a8c",
    TimeCategory.IDLE_OTHER: "#7d7d7d",
}

_CATEGORY_OF_CAUSE = {
    Cause.COMPUTE_BOUND: TimeCategory.COMPUTE_BOUND,
    Cause.MEMORY_BOUND: TimeCategory.MEMORY_BOUND,
    Cause.LATENCY_BOUND: TimeCategory.LATENCY_BOUND,
    Cause.COMMUNICATION: TimeCategory.COMMUNICATION,
    Cause.PIPELINE_BUBBLE: TimeCategory.BUBBLE,
    Cause.DATA_LOADING: TimeCategory.DATA_LOADING,
    Cause.HOST_BOUND: TimeCategory.HOST_BOUND,
    Cause.SYNCHRONIZATION: TimeCategory.SYNCHRONIZATION,
    Cause.STRAGGLER: TimeCategory.WAIT,
    Cause.IMBALANCE: TimeCategory.WAIT,
    Cause.CHECKPOINT: TimeCategory.CHECKPOINT,
    Cause.COPY: TimeCategory.COPY,
    Cause.DEVICE_GAP: TimeCategory.DEVICE_GAP,
    Cause.PROFILER: TimeCategory.PROFILER,
}


def contrast(first: str, second: str) -> float:
    """WCAG contrast of two '#rrggbb' colours, 1 to 21."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def ink(colour: str) -> str:
    """Black or white, whichever reads better on `colour`."""
    return max("#ffffff", "#101010", key=lambda candidate: contrast(candidate, colour))


def category_of_cause(cause: Cause) -> TimeCategory:
    """The heading whose colour a cause wears."""
    return _CATEGORY_OF_CAUSE.get(cause, TimeCategory.IDLE_OTHER)


def pattern(heading: TimeCategory) -> str:
    """The texture that tells families apart without colour: 'solid' computes, 'hatch' communicates, 'dots' idles."""
    if heading in COMPUTE_CATEGORIES:
        return "solid"
    return "hatch" if heading in EXPOSED_COMMUNICATION_CATEGORIES else "dots"


def variables(colours: dict[TimeCategory, str]) -> str:
    """CSS declarations --heading-NAME and --ink-NAME of one theme, the one source for bars, chips and canvas."""
    return "".join(_variables(heading, colour) for heading, colour in colours.items())


def mark_rules() -> str:
    """CSS rules that give a mark of class ss-h-NAME or ss-edge-NAME its --colour and --ink."""
    return "".join(
        f".ss-h-{name},.ss-edge-{name}{{--colour:var(--heading-{name});--ink:var(--ink-{name})}}"
        for name in (heading.value for heading in LIGHT)
    )


def _variables(heading: TimeCategory, colour: str) -> str:
    return f"--heading-{heading.value}:{colour};--ink-{heading.value}:{ink(colour)};"


def _luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
