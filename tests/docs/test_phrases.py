"""Texts for users have no phrase of the private dialect that stepscope once had."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.docs.phrases import deployment, documents, errors, generated, helps, hits, pending, verdicts


@pytest.mark.parametrize("texts", [helps, errors, documents, deployment, generated, verdicts])
def test_no_old_phrase_is_left(texts: Callable[[], Iterator[tuple[str, str]]]) -> None:
    left = [hit for hit in hits(texts()) if hit.place not in pending()]
    assert left == []


@pytest.mark.parametrize(
    "text",
    [
        "It books every instant under exactly one heading.",
        "the wait is charged to rank 3",
        "Share of the captured time: 30.9% (named from 10%)",
        "the host launches too slowly, the host never late, data ready at once",
        "gaps between kernels; then binds communication",
        "41 % of its roof",
        "what it stands on",
        "which is told by the driver",
        "a table that lives",
        "agent.toml: is no TOML",
        "The command ends with 1 when a GPU failed.",
        "No source tells anything new.",
        "capturing slowed the step by 23%: the job is healthy",
        "host bound 27.0 %",
        "about 41 ms a step (1.14x, replay +0.0%)",
    ],
)
def test_an_old_phrase_is_found(text: str) -> None:
    assert [hit.place for hit in hits([("here", text)])] != []


@pytest.mark.parametrize(
    "text",
    [
        "There is no agent at this address.",
        "Read a book under a tree; tell rank 3 and rank 4 apart: they cannot be told apart.",
        "the launch is late by 3 ms",
        "a stand on which it is mounted",
        "The kernel's roofline is 41%. Time after the step ends within 3 s.",
        "The value is no longer used.",
    ],
)
def test_plain_english_is_not(text: str) -> None:
    assert list(hits([("here", text)])) == []


def test_texts_are_found_in_all_that_users_read() -> None:
    assert {"stepscope", "stepscope agent config check"} <= {place for place, _ in helps()}
    assert any("pip install" in text for _, text in errors())
    assert {
        "deploy/grafana/board.py",
        "deploy/grafana/gpus.json",
        "deploy/prometheus/rules.yml",
        "deploy/slurm/epilog.sh",
        "deploy/slurm/prolog.sh",
    } <= {place for place, _ in deployment()}
    assert {"README.md", "docs/guides/agent.md"} <= {place for place, _ in documents()}
    assert "BOTTLENECK  " in "".join(text for place, text in documents() if place == "README.md")
    assert "without data-loading waits" in "".join(text for _, text in verdicts())
