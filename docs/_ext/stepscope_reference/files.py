"""Files of a run directory, names in a trace, and HTTP paths."""

from __future__ import annotations

from stepscope_reference.markdown import code, table, text
from stepscope_reference.snapshots import snapshot


def run_files() -> str:
    """Files of rank 3 and step 7, and the names that stepscope writes into a trace."""
    return "\n".join(
        f"## {text(title.capitalize())}\n\n"
        + table(("what", "name"), [(text(what), code(name)) for what, name in names.items()])
        for title, names in snapshot("run_files").items()
    )


def http_paths() -> str:
    """Paths of the agent and of the dashboard."""
    return "\n".join(
        f"## {text(server.capitalize())}\n\n"
        + table(("request", "who may ask"), [(code(path), text(who)) for path, who in paths.items()])
        for server, paths in snapshot("http_paths").items()
    )
