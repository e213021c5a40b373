"""Capabilities report: what is collected of each GPU, what is missing, and why."""

from __future__ import annotations

from stepscope.agent.sources import MetricGap, gpu_capabilities_of
from stepscope.core.metrics.readings import Collection, Labels, Missing, MissingReason, Reading, labels_of, with_labels

GPUS = [labels_of(gpu=index, uuid=f"GPU-{index}") for index in (2, 10)]


def reading(metric: str, labels: Labels) -> Reading:
    return Reading(metric, 1.0, labels, 1)


def test_each_gpu_has_its_own_report_and_one_gap_for_each_reason() -> None:
    hopper, lost = GPUS
    no_fan = MissingReason.NOT_SUPPORTED
    report = gpu_capabilities_of(
        Collection(
            (reading("power", hopper), reading("up", lost), reading("link", with_labels(hopper, link=3))),
            (
                Missing("fan", hopper, no_fan),
                Missing("pages", hopper, no_fan),
                Missing("link", with_labels(hopper, link=4), MissingReason.FAILED),  # of another link it is known
                Missing("xids", hopper, MissingReason.NO_PERMISSION, "root may have it"),
                Missing("", lost, MissingReason.GONE, "fell off the bus"),
            ),
        )
    )
    assert [entry.labels for entry in report] == GPUS  # 2 before 10
    assert report[0].collected == ("link", "power")
    assert report[0].gaps == (
        MetricGap(no_fan, "", ("fan", "pages")),
        MetricGap(MissingReason.NO_PERMISSION, "root may have it", ("xids",)),
    )
    assert report[1].gaps == (MetricGap(MissingReason.GONE, "fell off the bus", ()),)


def test_a_machine_without_a_driver_has_a_report_of_its_own() -> None:
    gone = Missing("", (), MissingReason.NOT_INSTALLED, "no NVIDIA driver is installed")
    (report,) = gpu_capabilities_of(Collection(missing=(gone,)))
    assert (report.labels, report.collected) == ((), ())
    assert report.gaps == (MetricGap(MissingReason.NOT_INSTALLED, "no NVIDIA driver is installed", ()),)
