"""GPU numbering: one index per GPU, also when a second source counts differently."""

from __future__ import annotations

from stepscope.agent.gpus.gpu_source import RenumberedSource
from stepscope.agent.polling import SourceState
from stepscope.core.metrics.readings import GPU, Collection, Finding, Labels, Missing, MissingReason, Reading, labels_of


def _told(*of: tuple[str, Labels]) -> SourceState:
    return SourceState("any", Collection(tuple(Reading(GPU + name, 1.0, labels, 0) for name, labels in of)))


_NVML = _told(("up", labels_of(gpu=0, uuid="GPU-a")), ("up", labels_of(gpu=1, uuid="GPU-b")))


def test_the_first_source_numbers() -> None:
    in_page = labels_of(gpu=0, uuid="GPU-b")
    page = _told(
        ("up", in_page),
        ("up", labels_of(gpu=1, uuid="GPU-a")),
        ("up", labels_of(gpu=2, uuid="GPU-c")),
        ("sm_active_ratio", labels_of(gpu=1, uuid="GPU-a", gpu_instance=7)),
    )
    missing = Missing(GPU + "power_watts", in_page, MissingReason.UNREADABLE)
    finding = Finding("clamped", "a line", labels_of(gpu=0, uuid="GPU-b", of="x"), 0)
    collection = Collection(page.collection.readings, (missing,), (finding,))
    seen = RenumberedSource(lambda: SourceState("page", collection, 5), lambda: _NVML).state()
    assert (seen.name, seen.collected_ns) == ("page", 5)
    assert [reading.labels for reading in seen.collection.readings] == [
        labels_of(gpu=1, uuid="GPU-b"),
        labels_of(gpu=0, uuid="GPU-a"),
        labels_of(gpu=2, uuid="GPU-c"),
        labels_of(gpu=0, uuid="GPU-a", gpu_instance=7),
    ]
    assert seen.collection.missing[0].labels == labels_of(gpu=1, uuid="GPU-b")
    assert seen.collection.findings[0].labels == labels_of(gpu=1, uuid="GPU-b", of="x")


def test_nothing_is_made_anew_without_need() -> None:
    same = _told(("up", labels_of(gpu=1, uuid="GPU-b")))
    assert RenumberedSource(lambda: same, lambda: _NVML).state().collection is same.collection
    other = _told(("up", labels_of(gpu=0, uuid="GPU-b")))
    assert RenumberedSource(lambda: other, lambda: SourceState("nvml")).state().collection is other.collection
    renumbered = RenumberedSource(lambda: other, lambda: _NVML)
    assert renumbered.state().collection is renumbered.state().collection


def test_numbers_stay_while_the_first_source_is_silent_and_no_two_gpus_have_one() -> None:
    page = _told(("up", labels_of(gpu=0, uuid="GPU-b")), ("up", labels_of(gpu=1, uuid="GPU-c")))
    first = [_NVML]
    renumbered = RenumberedSource(lambda: page, lambda: first[0])
    told = [labels_of(gpu=1, uuid="GPU-b"), labels_of(gpu=2, uuid="GPU-c")]
    assert [reading.labels for reading in renumbered.state().collection.readings] == told
    first[0] = SourceState("nvml")
    assert [reading.labels for reading in renumbered.state().collection.readings] == told


def test_nothing_is_told_under_a_number_that_may_be_anothers() -> None:
    page = _told(("up", labels_of(gpu=0, uuid="GPU-b")))
    first = [SourceState("nvml", reason=MissingReason.NOT_YET)]
    renumbered = RenumberedSource(lambda: page, lambda: first[0])
    seen = renumbered.state()
    assert (seen.reason, seen.collection.readings) == (MissingReason.NOT_YET, ())
    assert seen.detail == "nvml has not answered yet"
    first[0] = SourceState("nvml", reason=MissingReason.NOT_INSTALLED)
    assert renumbered.state().collection is page.collection
