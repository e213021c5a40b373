"""What of a text that others wrote can be a label's value? What can be seen, and not endless."""

from __future__ import annotations

LONGEST_LABEL = 100
LONGEST_ID = 320
"""A pod's namespace has 63 letters, its name 253."""


def label_text(text: str, longest: int = LONGEST_LABEL) -> str:
    """The text with spaces for what cannot be seen (control characters, overrides of direction), and cut.

    Args:
        text: of a user: the name of a job, a pod, a process.
        longest: characters.
    """
    if len(text) <= longest and text.isprintable():
        return text
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: longest + 1])
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
