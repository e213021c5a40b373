"""Configuration of the documentation site: `python -m sphinx -W docs build/docs`."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "stepscope"
author = "the stepscope authors"
release = importlib.metadata.version("stepscope")

extensions = ["myst_parser", "sphinx_copybutton", "stepscope_reference"]
exclude_patterns = ["_ext"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # console blocks hold real output, which has any characters
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
nitpicky = True
smartquotes = False  # options keep their "--", JSON its quotes

html_theme = "furo"
html_title = "stepscope"
