"""What does the agent tell of itself: which of its sources answer, how old is what they said, what is missing?"""

from __future__ import annotations

from stepscope.core.metrics import Metric, MetricKind, Unit

AGENT = "stepscope_agent_"


def _gauge(name: str, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(AGENT + name, MetricKind.GAUGE, unit, text, None, labels)


def _count(name: str, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(AGENT + name, MetricKind.COUNTER, unit, text, None, labels)


U = Unit
# fmt: off
AGENT_METRICS: tuple[Metric, ...] = (
    _gauge("info", U.NONE, "1; its labels say which agent this is.", "version"),
    _gauge("collector_up", U.NONE, "1: the collector answers. 0: it does not; label reason.", "collector", "reason"),
    _gauge("collector_duration_seconds", U.SECONDS, "How long its last collection took.", "collector"),
    _gauge("collector_age_seconds", U.SECONDS, "Time since its last collection ended.", "collector"),
    _count("collections_total", U.NONE, "Collections that ended.", "collector"),
    _count("collector_errors_total", U.NONE, "Times that it failed, or did not answer in time.", "collector"),
    _gauge("collector_readings", U.NONE, "Values of its last collection.", "collector"),
    _gauge("readings_dropped", U.NONE, "Values of its last collection that are not on this page.",
           "collector", "reason"),
    _gauge("missing", U.NONE, "Of how many things (GPUs, disks) this metric is missing; metric empty: all metrics.",
           "collector", "metric", "reason"),
    _gauge("finding", U.NONE, "How many findings of this kind the last collection has.",
           "collector", "code", "gpu", "uuid"),
    _gauge("sample_age_seconds", U.SECONDS, "Age of a GPU's newest value.", "collector", "gpu", "uuid"),
    _count("probe_starts_total", U.NONE, "Processes started to read GPUs."),
    _count("probe_timeouts_total", U.NONE, "Answers of those that did not come in time."),
    _count("probe_crashes_total", U.NONE, "Those that ended without being asked to."),
    _gauge("probes_left_behind", U.NONE, "Those that hang in the kernel though they were killed."),
    _count("xids_untold_total", U.NONE, "XIDs that are counted, but too many at once to be logged."),
)
# fmt: on
