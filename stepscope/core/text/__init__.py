"""How numbers, names and verdicts read as text, in a terminal as on a page."""
