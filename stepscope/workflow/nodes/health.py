"""Health of many nodes as their agents keep it, and notes of operators to one of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec

from stepscope.core.documents.health import (
    ACKNOWLEDGE_PATH,
    HEALTH_PATH,
    HEALTH_SCHEMA,
    SET_HEALTHY_PATH,
    AgentHealth,
    HealthList,
    NodeHealth,
    note_problem,
)
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.core.vocabulary import Notice
from stepscope.workflow.nodes.agent_client import AgentClient
from stepscope.workflow.nodes.answers import ANSWER_SECONDS, json_of
from stepscope.workflow.nodes.exchanges import AgentExchanges, Body

_OLD_AGENT = "update that agent: it does not keep health"


def health_of(clients: Sequence[AgentClient], *, seconds: float = ANSWER_SECONDS) -> HealthList:
    """Ask the agents of all nodes for their health, in parallel.

    Args:
        seconds: an agent is given up when neither it nor another has answered for so long.

    Raises:
        UnreachableError: none answers.
    """
    found: dict[str, AgentHealth] = {}
    all_found = threading.Event()

    def keep(agent: str, answer: Body | UnreachableError) -> None:
        try:
            if isinstance(answer, UnreachableError):
                raise answer
            found[agent] = AgentHealth(agent, "", _health_of(answer))
        except UnreachableError as failed:
            found[agent] = AgentHealth(agent, failed.what, None)
        if len(found) == len(agents):
            all_found.set()

    agents = [str(client) for client in clients]
    with AgentExchanges(clients, seconds=seconds) as exchanges:
        exchanges.get(agents, HEALTH_PATH, keep)
        all_found.wait()
    nodes = tuple(found[agent] for agent in agents)
    if all(node.health is None for node in nodes):
        raise UnreachableError(nodes[0].error, where=nodes[0].agent)
    silent = tuple(Notice("agent_silent", f"{node.agent}: {node.error}") for node in nodes if node.error)
    return HealthList(nodes, silent)


def open_health(listed: HealthList) -> HealthList:
    """The same health of nodes without the events that are over."""
    nodes = []
    for node in listed.nodes:
        if node.health is not None:
            events = tuple(event for event in node.health.events if event.ended_ns is None)
            node = replace(node, health=replace(node.health, events=events))
        nodes.append(node)
    return replace(listed, nodes=tuple(nodes))


def acknowledge_event(client: AgentClient, event_id: str, *, by: str, why: str) -> NodeHealth:
    """Acknowledge an open event of a node; its health then.

    Raises:
        UsageError: the token is not the agent's, or the note is empty or too long.
        DataError: there is no such event, or the agent refuses.
        UnreachableError: it does not answer.
    """
    return _noted(client, ACKNOWLEDGE_PATH, {"event": event_id, "by": by, "why": why})


def set_healthy(client: AgentClient, target: str, *, by: str, why: str) -> NodeHealth:
    """End all open events of a node's GPU, or of the node; its health then.

    Args:
        target: index or UUID of the GPU, or "node".

    Raises:
        UsageError: the token is not the agent's, or the note is empty or too long.
        DataError: there is no such GPU, or the agent refuses.
        UnreachableError: it does not answer.
    """
    return _noted(client, SET_HEALTHY_PATH, {"target": target, "by": by, "why": why})


def _noted(client: AgentClient, path: str, note: Mapping[str, Any]) -> NodeHealth:
    if problem := note_problem(note):
        raise UsageError(problem)
    reply = client.ask("POST", path, note)
    if reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        what_next = "name the file with the agent's token: --token-file"
        raise UsageError(reply.error, where=str(client), what_next=what_next)
    if reply.status == HTTPStatus.NOT_FOUND and not reply.document:
        raise UnreachableError(_OLD_AGENT, where=str(client))
    if reply.error:
        raise DataError(reply.error, where=str(client))
    try:
        return _checked(reply.document)
    except UnreachableError as error:
        raise UnreachableError(error.what, where=str(client)) from None


def _health_of(body: Body) -> NodeHealth:
    if body[0] == HTTPStatus.NOT_FOUND:
        raise UnreachableError(_OLD_AGENT)
    return _checked(json_of(body))


def _checked(document: Mapping[str, Any]) -> NodeHealth:
    schema = document.get("schema")
    if schema != HEALTH_SCHEMA:
        raise UnreachableError(f"answers {schema!r}, this version reads {HEALTH_SCHEMA!r}")
    try:
        events = [{**raw, "labels": sorted(raw["labels"].items())} for raw in document["events"]]
        return msgspec.convert({**document, "events": events}, NodeHealth)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreachableError(f"its answer is not a {HEALTH_SCHEMA} document ({error})") from None
