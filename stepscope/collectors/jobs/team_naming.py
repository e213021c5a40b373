"""Names of the labels, annotations and environment variables that say which team and project a job belongs to."""

from __future__ import annotations

from dataclasses import dataclass

TEAM_NAMES = ("STEPSCOPE_TEAM", "stepscope.io/team", "team", "TEAM")
PROJECT_NAMES = ("STEPSCOPE_PROJECT", "stepscope.io/project", "project", "PROJECT", "WANDB_PROJECT")


@dataclass(frozen=True, slots=True)
class TeamNaming:
    """Labels and annotations of pods, and variables of processes; the first of each list that is set counts.

    Attributes:
        team, project: names that hold the team's and the project's name.
    """

    team: tuple[str, ...] = TEAM_NAMES
    project: tuple[str, ...] = PROJECT_NAMES
