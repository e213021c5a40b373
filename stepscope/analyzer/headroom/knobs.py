"""Knobs: the option that makes each known change, as the user writes it.

The table of all options is `analyzer/knobs.py`; `Options(settings).of_changes()` names those of a job's own trainer.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.analyzer.knobs import Options
from stepscope.core.vocabulary import Change

Knobs = Mapping[Change, str]
"""What to write for each change that is not made yet, with the present value where it is known."""

TORCH_KNOBS: Knobs = Options().of_changes()
"""Those of plain torch."""
