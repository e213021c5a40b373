"""Time of `stepscope status` and `top` over many agents, beside plain requests to the same agents.

    python -m benchmarks.agent.many_nodes [--count 1250] [--hanging 20] [--garbage 14] [--rounds 5] [--old] [--urgent]

The agents are those of `simulated_agents`, served by one process. In each round every command runs once, and so does
the client alone: all requests without any parsing, and `curl --parallel` where it is installed. The ratio of a command
to the client's time says what reading and judging the answers costs, whatever else this machine does. The time limit,
which silent agents take in any case, is part of both. Wall and CPU seconds are medians. With `--urgent` (needs root)
agents and commands get priority over all other processes, as if the machine were idle.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.agent.simulated_agents import Fleet, recorded_document, simulated_agents
from benchmarks.measurement import Cost, measure

_SECONDS = 2.0
"""The time limit of the commands."""
_PLAIN = """
import sys, threading
from stepscope.workflow.nodes.agent_client import agent_client
from stepscope.workflow.nodes.exchanges import AgentExchanges
clients = [agent_client(line) for line in open(sys.argv[1]).read().split()]
left, done, size = len(clients), threading.Event(), 0
def keep(agent, answer):
    global left, size
    left -= 1
    size += len(answer[1]) if isinstance(answer, tuple) else 0
    if not left: done.set()
with AgentExchanges(clients, seconds=float(sys.argv[2])) as exchanges:
    exchanges.get([str(client) for client in clients], sys.argv[3], keep)
    done.wait()
print(size)
"""


def _commands(agents: Path) -> dict[str, list[str]]:
    stepscope = [sys.executable, "-m", "stepscope"]
    plain = [sys.executable, "-c", _PLAIN, str(agents), str(_SECONDS)]
    commands = {
        "client alone, view=status": [*plain, "/api/v1/node?view=status"],
        "status": [*stepscope, "status", "--agents", str(agents)],
        "status --by job": [*stepscope, "status", "--by", "job", "--agents", str(agents)],
        "client alone, view=table": [*plain, "/api/v1/node?view=table"],
        "top --once": [*stepscope, "top", "--once", "--agents", str(agents)],
        "client alone, all": [*plain, "/api/v1/node"],
        "status --json": [*stepscope, "status", "--json", "--agents", str(agents)],
        "top --json": [*stepscope, "top", "--json", "--agents", str(agents)],
    }
    if shutil.which("curl"):
        urls = agents.with_suffix(".curl")
        lines = [f'url = "http://{line}/api/v1/node"\noutput = "/dev/null"' for line in agents.read_text().split()]
        urls.write_text("\n".join(lines))
        commands["curl --parallel, all"] = [
            *("curl", "--silent", "--parallel", "--parallel-immediate", "--parallel-max", "300"),
            *("--max-time", str(_SECONDS), "--config", str(urls)),
        ]
    return commands


def _baseline(name: str) -> str:
    view = "status" if name in ("status", "status --by job", "status --json") else "table" if "once" in name else ""
    return f"client alone, view={view}" if view else "client alone, all"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1250)
    parser.add_argument("--hanging", type=int, default=20)
    parser.add_argument("--garbage", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--old", action="store_true", help="the agents know no views of their document")
    parser.add_argument("--document", type=Path, help="a recorded document of a node; else one is recorded")
    parser.add_argument("--urgent", action="store_true", help="before all other processes, as if the machine were idle")
    options = parser.parse_args()
    fleet = Fleet(options.count, options.hanging, options.garbage)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document = options.document or folder / "node.json"
        if not options.document:
            document.write_text(json.dumps(recorded_document()))
        agents = folder / "agents.txt"
        agents.write_text("".join(f"{fleet.address(index)}\n" for index in range(fleet.count)))
        commands = _commands(agents)
        costs: dict[str, list[Cost]] = {one: [] for one in commands}
        with simulated_agents(fleet, document, is_old=options.old) as served:
            for pid in (0, served) if options.urgent else ():
                os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
            for _ in range(options.rounds):
                for one, command in commands.items():
                    costs[one].append(measure(command))
    print(f"{fleet.count} agents, {fleet.hanging} hang, {fleet.garbage} answer garbage; load {os.getloadavg()[0]:.1f}")
    print(f"{'':28} wall s (least)   CPU s   to the client alone   lines")
    for one, of_command in costs.items():
        wall, least = median(cost.wall_seconds for cost in of_command), min(cost.wall_seconds for cost in of_command)
        cpu = median(cost.cpu_seconds for cost in of_command)
        other = median(cost.wall_seconds for cost in costs[_baseline(one)])
        num_lines = of_command[-1].output.count("\n")
        print(f"{one:28} {wall:6.2f} ({least:5.2f})  {cpu:6.2f}   {wall / other:19.2f}   {num_lines:5}")


if __name__ == "__main__":
    main()
