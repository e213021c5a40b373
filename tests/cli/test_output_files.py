"""Commands that write a file check it before their work, and print the result if writing fails afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.core.errors import DataError
from tests.workflow.test_compare import write_run
from tests.workflow.written_traces import write_straggling_job

_COMMANDS = (
    (("analyze", "{job}", "--html"), "stepscope.workflow.analyze.analyze"),
    (("report", "{job}", "-o"), "stepscope.workflow.panels.report.analyze"),
    (("compare", "{a}", "{a}", "--junit"), "stepscope.workflow.compare.compare"),
    (("workload", "bench", "gpt", "-o"), "stepscope.reference_workloads.bench.measurement.run_bench"),
)


@pytest.mark.parametrize(("words", "work"), _COMMANDS, ids=lambda entry: entry[0] if isinstance(entry, tuple) else "")
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    words: tuple[str, ...],
    work: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "workload" in words:
        pytest.importorskip("torch")

    def too_late(*_arguments: object, **_options: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(work, too_late)
    output = tmp_path / "none" / "file"
    (tmp_path / "a").mkdir()
    given = [word.format(job=tmp_path / "a", a=tmp_path / "a") for word in words]
    with pytest.raises(SystemExit) as stop:
        main([*given, str(output)])
    told = f"stepscope: {output}: cannot be written (No such file or directory); check the path\n"
    assert (stop.value.code, capfd.readouterr()) == (3, ("", told))


@pytest.mark.parametrize("verb", ["analyze", "compare"])
def test_the_answer_is_shown_where_writing_fails_after_the_work(
    verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _content: bytes) -> None:
        raise DataError("cannot be written", where=str(path))

    if verb == "analyze":
        words = ["analyze", "--no-keep", str(write_straggling_job(tmp_path / "job")), "--html"]
        monkeypatch.setattr("stepscope.workflow.panels.report.write_whole", full)
    else:
        write_run(tmp_path / "a", step_ms=10.0)
        words = ["compare", str(tmp_path / "a"), str(tmp_path / "a"), "--junit"]
        monkeypatch.setattr("stepscope.store.files.write_whole", full)
    with pytest.raises(SystemExit) as stop:
        main([*words, str(tmp_path / "file")])
    told = capfd.readouterr()
    assert stop.value.code == 3
    assert ("BOTTLENECK  " if verb == "analyze" else "ms a step") in told.out
    assert f"stepscope: {tmp_path / 'file'}: cannot be written" in told.err
