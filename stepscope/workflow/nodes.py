"""How are many machines asked at once, so that one that does not answer delays no other?"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from stepscope.core.analysis import Notice
from stepscope.core.errors import StepscopeError, UnreachableError
from stepscope.core.node import NODE_PATH, NODE_SCHEMA, Node
from stepscope.workflow.agent_client import AgentClient

_MOST_THREADS = 64


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What is known of one machine.

    Attributes:
        agent: address of its agent.
        node: its last document; None before the first.
        error: why the agent did not answer the last time; empty while it does.
        at: when the document came, by the monotonic clock; None without one.
    """

    agent: str
    node: Node | None = None
    error: str = ""
    at: float | None = None


def silent_agents(answers: Iterable[NodeAnswer]) -> tuple[Notice, ...]:
    """Those that did not answer, as a document's warnings."""
    return tuple(Notice("agent_silent", f"{answer.agent}: {answer.error}") for answer in answers if answer.error)


def answers_of(clients: Sequence[AgentClient]) -> tuple[NodeAnswer, ...]:
    """Each asked once, all at the same time."""
    with NodeWatch(clients) as watch:
        watch.ask()
        watch.wait()
        return watch.answers()


def check_answers(answers: Sequence[NodeAnswer]) -> None:
    """
    Raises:
        UnreachableError: no agent answered.
    """
    if all(answer.error for answer in answers):
        raise UnreachableError(answers[0].error, where=answers[0].agent)


def ask(client: AgentClient) -> Node:
    """A machine's document.

    Raises:
        UnreachableError: no answer, or none that can be read.
    """
    reply = client.ask("GET", NODE_PATH)
    if reply.error:
        raise UnreachableError(reply.error, where=str(client))
    schema = reply.document.get("schema")
    if schema != NODE_SCHEMA:
        raise UnreachableError(f"answers {schema!r}, this version reads {NODE_SCHEMA!r}", where=str(client))
    try:
        return msgspec.convert(reply.document, Node)
    except msgspec.ValidationError as error:
        raise UnreachableError(f"its answer is no {NODE_SCHEMA} ({error})", where=str(client)) from None


class NodeWatch:
    """Asks agents again and again, never twice at a time. A context manager; its threads keep no process alive."""

    def __init__(self, clients: Sequence[AgentClient]) -> None:
        self._clients = {str(client): client for client in clients}
        self._answers = {agent: NodeAnswer(agent) for agent in self._clients}
        self._lock = threading.Condition()
        self._asked: set[str] = set()
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        count = min(_MOST_THREADS, len(self._clients))
        self._threads = [threading.Thread(target=self._run, name="stepscope-ask", daemon=True) for _ in range(count)]

    def __enter__(self) -> NodeWatch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._queue.put(None)

    def ask(self) -> None:
        """Ask all whose answer to the last question has come."""
        with self._lock:
            for agent in self._clients.keys() - self._asked:
                self._asked.add(agent)
                self._queue.put(agent)

    def wait(self) -> None:
        """Until all have answered or were given up."""
        with self._lock:
            self._lock.wait_for(lambda: not self._asked)

    def answers(self) -> tuple[NodeAnswer, ...]:
        """The newest of each, in the order of the clients."""
        with self._lock:
            return tuple(self._answers.values())

    def _run(self) -> None:
        while (agent := self._queue.get()) is not None:
            try:
                node, error = ask(self._clients[agent]), ""
            except StepscopeError as failed:
                node, error = None, failed.what
            except Exception as failed:  # the thread's edge: one agent's answer ends no question to others
                node, error = None, f"its answer cannot be read ({type(failed).__name__})"
            with self._lock:
                before = self._answers[agent]
                told = NodeAnswer(agent, node, "", time.monotonic()) if node else replace(before, error=error)
                self._answers[agent] = told
                self._asked.discard(agent)
                self._lock.notify_all()
