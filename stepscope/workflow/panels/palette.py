"""Palette: colours and textures of the categories, in light and dark.

The hues are Okabe and Ito's, safe for colour-blind readers, darkened or lightened to a contrast of at least 3:1 with
the page (WCAG 2.2, 1.4.11). Colour is never the only mark: communication is hatched, idle time dotted.
"""

from __future__ import annotations

from stepscope.core.vocabulary import COMPUTE_CATEGORIES, EXPOSED_COMMUNICATION_CATEGORIES, Cause, TimeCategory

PAGE_LIGHT = "#ffffff"
PAGE_DARK = "#242424"
"""Background of a panel: Mantine's body colour in the light theme, `dark.7` in the dark one."""

MIN_CONTRAST = 3.0

_LIGHT_AND_DARK = {
    TimeCategory.COMPUTE_BOUND: ("#0072b2", "#3d9be0"),
    TimeCategory.MEMORY_BOUND: ("#00836a", "#1fb890"),
    TimeCategory.LATENCY_BOUND: ("#3a8fd0", "#8cc4f2"),
    TimeCategory.COMPUTE_OTHER: ("#5c7894", "#8ba3bd"),
    TimeCategory.COMMUNICATION: ("#d55e00", "#f0792b"),
    TimeCategory.WAIT: ("#b87a00", "#e69f00"),
    TimeCategory.BUBBLE: ("#c2579a", "#e07fbf"),
    TimeCategory.COMMUNICATION_UNSPLIT: ("#94501f", "#c98a5b"),
    TimeCategory.COPY: ("#2a95a5", "#5fc7d6"),
    TimeCategory.DATA_LOADING: ("#857500", "#d6c94a"),
    TimeCategory.CHECKPOINT: ("#6a51a3", "#a592dd"),
    TimeCategory.SYNCHRONIZATION: ("#b23a48", "#ee7280"),
    TimeCategory.HOST_BOUND: ("#4a4a55", "#c3c3cf"),
    TimeCategory.DEVICE_GAP: ("#868e96", "#8a929a"),
    TimeCategory.PROFILER: ("#7c6f64", "#a89a8c"),
    TimeCategory.IDLE_OTHER: ("#767676", "#7d7d7d"),
}
LIGHT, DARK = ({category: pair[theme] for category, pair in _LIGHT_AND_DARK.items()} for theme in (0, 1))
"""The colour of each category, '#rrggbb', by theme."""

_CATEGORY_OF_CAUSE = {
    Cause.PIPELINE_BUBBLE: TimeCategory.BUBBLE,
    Cause.STRAGGLER: TimeCategory.WAIT,
    Cause.IMBALANCE: TimeCategory.WAIT,
    **{cause: TimeCategory(cause.value) for cause in Cause if cause.value in list(TimeCategory)},
}


def contrast(first: str, second: str) -> float:
    """Core palette: WCAG contrast of two colours, '#rrggbb', 1 to 21."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def ink(colour: str) -> str:
    """Core palette: the text colour, black or white, with the higher contrast on `colour`."""
    return max("#ffffff", "#101010", key=lambda candidate: contrast(candidate, colour))


def category_of_cause(cause: Cause) -> TimeCategory:
    """Core palette: the category whose colour a cause has."""
    return _CATEGORY_OF_CAUSE.get(cause, TimeCategory.IDLE_OTHER)


def pattern(category: TimeCategory) -> str:
    """Core palette: texture of a category: 'solid' compute, 'hatch' communication, 'dots' idle."""
    if category in COMPUTE_CATEGORIES:
        return "solid"
    return "hatch" if category in EXPOSED_COMMUNICATION_CATEGORIES else "dots"


def variables(colours: dict[TimeCategory, str]) -> str:
    """Panels: CSS variables of one theme: --heading-NAME (the colour) and --ink-NAME (text on it)."""
    return "".join(f"--heading-{name}:{colour};--ink-{name}:{ink(colour)};" for name, colour in colours.items())


def mark_rules() -> str:
    """Core palette: CSS rules that set --colour and --ink for marks of the classes ss-h-NAME and ss-edge-NAME."""
    return "".join(
        f".ss-h-{name},.ss-edge-{name}{{--colour:var(--heading-{name});--ink:var(--ink-{name})}}" for name in LIGHT
    )


def _luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
