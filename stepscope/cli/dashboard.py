"""`stepscope dashboard`: the web app of runs and their verdicts."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click


@click.command("dashboard")
@click.option("--runs", "root", type=click.Path(path_type=Path), default=Path("."), help="Show these runs, or one run.")
@click.option("--host", default="127.0.0.1", help="Listen on this address.")
@click.option("--port", type=click.IntRange(0, 65535), default=8050, help="Listen on this port; 0 for a free one.")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
@click.option("--insecure", is_flag=True, help="Allow an address that other machines can reach; there is no login.")
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Accept this host name in requests; repeatable.",
)
def command(
    root: Path, host: str, port: int, open_browser: bool, insecure: bool, allowed_hosts: tuple[str, ...]
) -> None:
    """Serve the web app of runs and their verdicts."""
    from stepscope.dashboard.app import serve

    def announce(url: str) -> None:
        click.echo(f"stepscope dashboard: {url} shows the runs in {root.resolve()}; stop it with Ctrl-C", err=True)
        if open_browser:
            webbrowser.open(url)

    serve(root, host=host, port=port, insecure=insecure, allowed_hosts=allowed_hosts, when_listening=announce)
