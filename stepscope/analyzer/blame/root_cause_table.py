"""The root-cause table of an analysis."""

from __future__ import annotations

import numpy as np

from stepscope.analyzer.blame.reasons import VerdictInputs, reasons_of
from stepscope.analyzer.blame.root_causes import INTERVAL, Resampled, resample_whole
from stepscope.analyzer.ledger.segments import CAUSE_ORDER
from stepscope.core.documents.analysis import RootCause


def root_causes(inputs: VerdictInputs, resampled: Resampled) -> list[RootCause]:
    """Blame: the root-cause table, largest first; causes without time are left out."""
    table = inputs.table
    fractions, whole = table.fractions(), table.whole_step_shares()
    low, high = np.quantile(resampled, INTERVAL, axis=0)
    spread = table.spread(inputs.movable)
    low, high = np.maximum(low - spread, 0.0), np.minimum(high + spread, 1.0)
    least, most = np.quantile(resample_whole(table), INTERVAL, axis=0)
    least, most = np.maximum(least - spread, 0.0), most + spread
    rows = []
    for code, cause in enumerate(CAUSE_ORDER):
        if fractions[cause] <= 0:
            continue
        reasons, evidence = reasons_of(cause, inputs)
        scale = inputs.job.step_ms if whole[cause] > 0 else None
        rows.append(
            RootCause(
                cause=cause,
                reasons=reasons,
                fraction=fractions[cause],
                ms_per_step=None if scale is None else whole[cause] * scale,
                interval=(float(low[code]), float(high[code])),
                ranks=table.ranks_of(cause),
                evidence=evidence,
                ms_interval=None if scale is None else (float(least[code]) * scale, float(most[code]) * scale),
            )
        )
    return sorted(rows, key=lambda row: -row.fraction)
