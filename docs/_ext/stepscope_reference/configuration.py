"""Configuration of the agent, and the environment variables that stepscope reads."""

from __future__ import annotations

from stepscope.agent.config.configuration import PREFIX, settings_reference
from stepscope_reference.markdown import code, table, text
from stepscope_reference.snapshots import snapshot

_VARIABLES = {
    "STEPSCOPE_AGENTS": "Default of `--agent` of `top`, `status` and `capture`: agents, separated by spaces.",
    "STEPSCOPE_AGENT_CONFIG": "Default of `--config` of `agent run`, `check` and `config`, and of `doctor`.",
    "STEPSCOPE_AGENT_SOCKET": "Socket by which training finds the agent; empty: none.",
    "STEPSCOPE_AGENT__HEALTH__EXPECTED_GPUS": "One of the keys above: GPUs that the machine should have.",
    "STEPSCOPE_CAPTURE_WHEN": "Default of `profile(capture_when=)`: `slow_step`, or `slow_step:factor=2,times=5`.",
    "STEPSCOPE_DISABLE": "1 turns measuring off in `profile()` and `stepscope run`.",
    "STEPSCOPE_EXPORT": "Default of `profile(export=)`: `otel`, `wandb`, `mlflow`, separated by commas.",
    "STEPSCOPE_KEEP_TRACES": "Default of `profile(keep_traces=)`: `outliers`, `all` or `none`.",
    "STEPSCOPE_LIVE_VERDICT": "Default of `profile(live_verdict=)`: seconds between verdicts, `on` or `off`.",
    "STEPSCOPE_MEMORY": "Default of `profile(memory=)`: when memory snapshots are written.",
    "STEPSCOPE_MESH": "Parallel layout of the job, such as `tp=2,pp=2,dp=2`.",
    "STEPSCOPE_PROJECT": "Project of a job, in the agent's job metrics.",
    "STEPSCOPE_PURE": "1 turns the C accelerators off.",
    "STEPSCOPE_REDUCE": "Default of `profile(reduce=)`: `view` or `off`.",
    "STEPSCOPE_RUN": "Default of `profile(run=)`: the run's name.",
    "STEPSCOPE_SIGNALS": "`off`: `profile()` leaves signals alone.",
    "STEPSCOPE_SPOOL": "Default of `profile(spool=)`: folder of the node for runs until they are uploaded.",
    "STEPSCOPE_SPOOL_KEEP": "1 leaves traces on the node once they are uploaded.",
    "STEPSCOPE_STUCK_AFTER": "Default of `profile(stuck_after=)`: seconds after which a step is stuck, or `off`.",
    "STEPSCOPE_HISTORY": "Default of `--history` of `stepscope history`: directory or URL.",
    "STEPSCOPE_TARGETS": "Default of `--targets` (`top`, `status`, `capture`, `health`): sources, separated by spaces.",
    "STEPSCOPE_TEAM": "Team of a job, in the agent's job metrics.",
    "STEPSCOPE_TOKEN_FILE": "Default of `--token-file` (`top`, `status`, `capture`, `health`): the agents' token.",
    "STEPSCOPE_UPLOAD_WAIT": "Seconds that the end of a training process waits for its upload; default 120.",
    "STEPSCOPE_VIEWS": "`off`: analyses neither use nor keep views of traces.",
    "STEPSCOPE_ZERO_CODE": "Set by `stepscope run` for the processes that it starts.",
}
"""Variable of the environment -> what it does; a new one without a text fails the build."""


def configuration() -> str:
    """All keys of the agent's configuration, and all variables."""
    names = [name for name in snapshot("settings")["variables"] if name[0] != "_"]
    variables = table(("variable", "what"), [(code(name), text(_VARIABLES[name])) for name in names])
    rows = "\n".join(settings_reference())
    return (
        f"## Agent\n\n{text(f'Every key is also the variable `{PREFIX}SECTION__KEY`.')}\n\n{rows}\n\n"
        f"## Environment variables\n\n{variables}"
    )
