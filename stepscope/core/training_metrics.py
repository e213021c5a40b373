"""What is told of training processes that speak to the agent? One row a metric: our name, unit and help.

Series of a process have its run and rank, and are there as long as it is. Who it is stands on `info` alone.
"""

from __future__ import annotations

from stepscope.core.metrics import Metric, MetricKind, Unit

TRAINING = "stepscope_training_"
LINK = "stepscope_agent_training_"
KINETO = "stepscope_agent_kineto_"

_RANK = ("run", "rank")


def _of_rank(name: str, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(TRAINING + name, MetricKind.GAUGE, unit, text, None, (*_RANK, *labels))


def _of_link(name: str, kind: MetricKind, text: str, *labels: str) -> Metric:
    return Metric(LINK + name, kind, Unit.NONE, text, None, labels)


def _of_kineto(name: str, kind: MetricKind, text: str) -> Metric:
    return Metric(KINETO + name, kind, Unit.NONE, text, None, ())


U = Unit
# fmt: off
TRAINING_METRICS: tuple[Metric, ...] = (
    _of_rank("info", U.NONE, "1; its labels say which process this is; mesh as dp=2,tp=4.",
             "pid", "uuid", "local_rank", "world_size", "mesh"),
    _of_rank("step", U.NONE, "Newest finished optimizer step, counted from 0."),
    _of_rank("step_seconds", U.SECONDS, "How long that step took."),
    _of_rank("step_age_seconds", U.SECONDS, "Time since it ended, before the first since the start."),
    _of_rank("data_wait_seconds", U.SECONDS, "Time that it waited for data."),
    _of_rank("phase_seconds", U.SECONDS, "Time of its phases.", "phase"),
    _of_rank("figure", U.NONE, "Loss, tokens and what else training tells of the newest step that has them all.",
             "figure"),
    _of_rank("capturing", U.NONE, "1: the open step is being traced, or is the one before."),
    _of_rank("heartbeat_age_seconds", U.SECONDS, "Time since the process was heard; it speaks once a second."),
    Metric(TRAINING + "hang", MetricKind.GAUGE, Unit.NONE,
           "1: no rank of the run gets on; kind: host, device, desync, unknown.", None, ("run", "kind")),
    _of_rank("hang_guilty", U.NONE, "1: this rank holds the run up."),
    Metric(TRAINING + "nccl_stalled_seconds", MetricKind.GAUGE, Unit.SECONDS,
           "Time for which NCCL's RAS has seen ranks of a communicator stand at different counts.", None,
           ("run", "communicator")),
    _of_link("connections", MetricKind.GAUGE, "Training processes that are connected."),
    _of_kineto("processes", MetricKind.GAUGE, "Processes started with KINETO_USE_DAEMON=1 that ask the agent."),
    _of_kineto("rejected_total", MetricKind.COUNTER, "Datagrams to that socket that were no questions."),
    _of_link("refused_total", MetricKind.COUNTER, "Connections that the agent ended, by why.", "reason"),
)
# fmt: on
