"""The live verdict on the pages of the runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("dash_mantine_components")

from stepscope.core.documents.run_directory import LIVE_VERDICT_FILE
from stepscope.core.protocol.verdicts import LiveVerdict, live_verdict_document
from stepscope.dashboard.pages.runs import make_run_page, make_runs_page
from stepscope.store.runs import RunStore, save_analysis
from tests.dashboard import example_run as example
from tests.workflow.written_runs import write_run


def test_both_pages_have_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", num_steps=3)
    save_analysis(run, example.make_analysis(example.make_timelines()))
    store, line = RunStore(tmp_path), "While it ran: BOTTLENECK  Copies: 20%; without it 80.0 ms per step (120 min ago)"
    assert "While it ran" not in str(make_runs_page(store)) + str(make_run_page(store, "r"))
    hours_ago_ns = time.time_ns() - 2 * 3600 * 10**9
    verdict = LiveVerdict("r", hours_ago_ns, "copy", 0.9, "Copies: 20%", bottleneck=True, share=0.2, fixed_step_ms=80.0)
    (run / LIVE_VERDICT_FILE).write_text(json.dumps(live_verdict_document(verdict)))
    assert line in str(make_runs_page(store))
    assert line in str(make_run_page(store, "r"))
