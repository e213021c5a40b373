"""Configuration of the agent, and the environment variables that stepscope reads."""

from __future__ import annotations

from stepscope.agent.config.configuration import PREFIX, reference
from stepscope_reference.markdown import code, text
from stepscope_reference.snapshots import snapshot


def configuration() -> str:
    """All keys of the agent's configuration, and all variables."""
    variables = "".join(f"- {code(name)}\n" for name in snapshot("settings")["variables"] if name[0] != "_")
    rows = "\n".join(reference())
    return (
        f"## Agent\n\n{text(f'Every key is also the variable `{PREFIX}SECTION__KEY`.')}\n\n{rows}\n\n"
        f"## Environment variables\n\n{variables}"
    )
