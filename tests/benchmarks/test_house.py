"""Figures of a small package are those that a reader would count."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.house import GENERATED_MARK, House, house

_FILES = {
    "stepscope/__init__.py": "",
    "stepscope/room/__init__.py": '"""A room."""\n',
    "stepscope/room/table.py": '"""Which table?"""\n\nfrom stepscope.room import (\n    chair,\n)\n\n# made of wood\n',
    "stepscope/room/chair.py": '"""A chair."""\n\nif True:\n    from stepscope.room.table import table\n',
    "stepscope/room/lamp.py": "def light():\n    from stepscope.room.chair import sit\n    import stepscope.garden\n",
    "stepscope/garden.py": "from stepscope.room.lamp import light\n",
    "README.md": "three short words\n",
    "CHANGELOG.md": "not counted\n",
    "docs/guide/first.md": "two words\n",
    "docs/reference.md": f"{GENERATED_MARK} by a program -->\nnot counted\n",
}


@pytest.fixture
def figures(tmp_path: Path) -> House:
    for name, text in _FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return house(tmp_path)


def test_sizes(figures: House) -> None:
    assert (figures.modules, figures.modules_without_packages, figures.modules_with_code) == (6, 4, 4)
    assert (figures.lines, figures.median_lines) == (16, 3.5)
    assert figures.import_line_share == 7 / 16
    assert (figures.largest_folder, figures.largest_folder_files, figures.folders_over_30) == ("stepscope.room", 4, 0)


def test_texts(figures: House) -> None:
    assert (figures.question_docstrings, figures.comment_lines, figures.document_words) == (0.25, 1, 5)


def test_who_imports_whom(figures: House) -> None:
    """Table and chair import each other; lamp and garden do not, as one of them waits until it is called."""
    assert figures.import_circles == [["stepscope.room.chair", "stepscope.room.table"]]
    assert (figures.one_importer, figures.one_importer_same_folder) == (3, 1)


def test_what_runs_nothing_tells_nothing_of_it(figures: House) -> None:
    assert (figures.trace_files, figures.trace_functions_files, figures.step_files) == (None, None, None)
