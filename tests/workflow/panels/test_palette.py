"""Palette: every mark contrasts with the page, and every label with its mark."""

from __future__ import annotations

import pytest

from stepscope.core.vocabulary import COMPUTE_CATEGORIES, EXPOSED_COMMUNICATION_CATEGORIES, Cause, TimeCategory
from stepscope.workflow.panels.palette import (
    DARK,
    LIGHT,
    MIN_CONTRAST,
    PAGE_DARK,
    PAGE_LIGHT,
    category_of_cause,
    contrast,
    ink,
    mark_rules,
    pattern,
    variables,
)


@pytest.mark.parametrize("heading", TimeCategory)
def test_every_heading_stands_out_from_the_page_in_both_themes(heading: TimeCategory) -> None:
    assert contrast(LIGHT[heading], PAGE_LIGHT) >= MIN_CONTRAST
    assert contrast(DARK[heading], PAGE_DARK) >= MIN_CONTRAST


@pytest.mark.parametrize("heading", TimeCategory)
def test_labels_can_be_read_on_their_colour(heading: TimeCategory) -> None:
    for colours in (LIGHT, DARK):
        assert contrast(ink(colours[heading]), colours[heading]) >= 4.5


def test_no_two_headings_share_a_colour() -> None:
    assert len(set(LIGHT.values())) == len(set(DARK.values())) == len(TimeCategory)


def test_contrast_is_that_of_wcag() -> None:
    assert round(contrast("#000000", "#ffffff"), 2) == 21
    assert round(contrast("#0072b2", "#ffffff"), 2) == 5.19


def test_textures_tell_computing_communicating_and_idling_apart() -> None:
    assert {pattern(heading) for heading in COMPUTE_CATEGORIES} == {"solid"}
    assert {pattern(heading) for heading in EXPOSED_COMMUNICATION_CATEGORIES} == {"hatch"}
    assert pattern(TimeCategory.HOST_BOUND) == "dots"


def test_every_cause_has_a_colour_and_every_heading_a_rule_in_the_style_sheet() -> None:
    assert {category_of_cause(cause) for cause in Cause} <= set(TimeCategory)
    for heading in TimeCategory:
        assert f".ss-h-{heading.value}," in mark_rules()
        assert f"--heading-{heading.value}:{DARK[heading]};" in variables(DARK)
