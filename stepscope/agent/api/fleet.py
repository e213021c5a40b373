"""How do fleet classes stand in the node's document?"""

from __future__ import annotations

from stepscope.core.fleet_class import FleetClass, FleetReport
from stepscope.core.node import NodeClass, NodeEvidence, NodeJobClass


def spent_of(told: FleetClass) -> NodeClass:
    """One class; shares that are not known are left out."""
    return NodeClass(
        told.cause.value,
        tuple(reason.value for reason in told.reasons),
        told.confidence,
        told.summary,
        told.counters.value,
        {name: round(share, 4) for name, share in told.spent().items()},
        tuple(NodeEvidence(one.metric, one.value, one.unit, one.threshold, tuple(one.ranks)) for one in told.evidence),
        told.begin_ns,
        told.end_ns,
    )


def job_classes_of(report: FleetReport) -> tuple[NodeJobClass, ...]:
    """Those of jobs."""
    return tuple(
        NodeJobClass(
            one.job.kind.value,
            one.job.id,
            tuple(dict(labels).get("uuid", "") for labels in one.devices),
            spent_of(one.told),
        )
        for one in report.jobs
    )
