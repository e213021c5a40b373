"""Registry of the dashboard's pages: paths, what each shows, and the section of the navigation that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from stepscope.dashboard.page_state import PageState
from stepscope.dashboard.pages.cluster import make_cluster_page
from stepscope.dashboard.pages.events import make_events_page
from stepscope.dashboard.pages.jobs import make_jobs_page
from stepscope.dashboard.pages.runs import make_run_page, make_runs_page
from stepscope.dashboard.pages.shell import not_found
from stepscope.dashboard.queries import FleetQueries
from stepscope.store.runs import RunStore, UnknownRunError


class Section(StrEnum):
    """Entry of the navigation; its value is the path."""

    CLUSTER = "/cluster"
    JOBS = "/jobs"
    EVENTS = "/events"
    RUNS = "/runs"

    @property
    def words(self) -> str:
        """Text of the entry."""
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class Sources:
    """What pages are made from: the runs, and the metric history if there is one."""

    store: RunStore
    fleet: FleetQueries | None


@dataclass(frozen=True, slots=True)
class Page:
    """Content of the dashboard's shell for a path.

    Attributes:
        body: Dash components.
        breadcrumb: after the section's title; empty: the section itself.
        title: of the browser's window.
        is_live: whether it is made again every few seconds while somebody looks at it.
    """

    body: Any
    title: str
    section: Section | None = None
    breadcrumb: str = ""
    is_live: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A kind of page.

    Attributes:
        pattern: path; `*` stands for one part of it, which `make` and `exists` get decoded.
        exists: whether there is such a page, for the status of the HTTP answer.
    """

    pattern: str
    make: Callable[..., Page]
    exists: Callable[..., bool] = field(default=lambda *_: True)

    def match(self, path: str) -> list[str] | None:
        """The parts of a percent-encoded path that `*` stands for; None where it is another page's."""
        wanted, parts = self.pattern.strip("/").split("/"), path.strip("/").split("/")
        if len(wanted) != len(parts) or any(
            part != want for part, want in zip(parts, wanted, strict=True) if want != "*"
        ):
            return None
        found = [unquote(part) for part, want in zip(parts, wanted, strict=True) if want == "*"]
        return found if all(found) else None


def _runs(sources: Sources, _: PageState) -> Page:
    return Page(make_runs_page(sources.store), "Runs", Section.RUNS)


def _run(sources: Sources, _: PageState, run_id: str) -> Page:
    return Page(make_run_page(sources.store, run_id), run_id, Section.RUNS, run_id)


def _cluster(sources: Sources, state: PageState) -> Page:
    return Page(make_cluster_page(sources.fleet, state), "Cluster", Section.CLUSTER, is_live=sources.fleet is not None)


def _jobs(sources: Sources, state: PageState) -> Page:
    body = make_jobs_page(sources.fleet, sources.store, state)
    return Page(body, "Jobs", Section.JOBS, is_live=sources.fleet is not None)


def _events(sources: Sources, state: PageState) -> Page:
    body = make_events_page(sources.fleet, sources.store, state)
    return Page(body, "Events", Section.EVENTS, is_live=sources.fleet is not None)


def _home(sources: Sources, state: PageState) -> Page:
    return _runs(sources, state) if sources.fleet is None else _cluster(sources, state)


def _has_run(sources: Sources, run_id: str) -> bool:
    try:
        sources.store.path_of(run_id)
    except UnknownRunError:
        return False
    return True


ROUTES: tuple[Route, ...] = (
    Route("/", _home),
    Route(Section.CLUSTER, _cluster),
    Route(Section.JOBS, _jobs),
    Route(Section.EVENTS, _events),
    Route(Section.RUNS, _runs),
    Route(f"{Section.RUNS}/*", _run, _has_run),
)


def make_page(sources: Sources, path: str, query: str) -> Page:
    """The page at a percent-encoded path, or the one that says that there is none."""
    for route in ROUTES:
        parts = route.match(path)
        if parts is not None:
            return route.make(sources, PageState.parse(query), *parts)
    return Page(not_found(f"There is no page at {unquote(path)}."), "Not found")


def page_exists(sources: Sources, path: str) -> bool:
    """Whether there is a page at a percent-encoded path."""
    found = ((route, route.match(path)) for route in ROUTES)
    return any(parts is not None and route.exists(sources, *parts) for route, parts in found)
