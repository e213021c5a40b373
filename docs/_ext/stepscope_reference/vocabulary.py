"""Vocabulary: causes, reasons, categories, gate metrics, and the values of fields that have few."""

from __future__ import annotations

from stepscope.analyzer.blame.advice import Advice
from stepscope.analyzer.blame.remedies import ACTIONS, REMEDIES, Remedy, templates_of
from stepscope.analyzer.compare.gates import COLLECTIVE_KINDS, METRICS
from stepscope.core.text.wording import CATEGORY_MEANINGS
from stepscope.core.vocabulary import Cause, GoodputClass, Reason, TimeCategory
from stepscope_reference.fields import member_texts
from stepscope_reference.markdown import code, codes, table, text
from stepscope_reference.snapshots import snapshot


def causes() -> str:
    """Causes, the reasons that narrow them down, the categories of the time breakdown, and classes of GPU-time."""
    of_causes, of_reasons = member_texts(Cause), member_texts(Reason)
    cause_rows = [
        (code(cause), text(of_causes[cause.name]), text(_remedies(ACTIONS.get(cause, ())))) for cause in Cause
    ]
    reason_rows = [
        (code(reason), text(of_reasons[reason.name]), text(_remedies(REMEDIES[reason]))) for reason in Reason
    ]
    categories = [(code(category), text(CATEGORY_MEANINGS[category])) for category in TimeCategory]
    classes = [(code(kind), text(member_texts(GoodputClass)[kind.name])) for kind in GoodputClass]
    return (
        f"## Causes\n\n{table(('cause', 'what it is, and its evidence', 'remedy'), cause_rows)}\n"
        f"## Reasons\n\n{table(('reason', 'of which cause, and its evidence', 'remedy'), reason_rows)}\n"
        f"## Categories\n\n{table(('category', 'at such an instant'), categories)}\n"
        f"## Classes of GPU-time\n\n{table(('class', 'what the GPU-time went to'), classes)}"
    )


def _remedies(entry: str | tuple[Remedy, ...]) -> str:
    """All remedies of a cause or a reason, as written for a job of plain torch."""
    options = Advice(affinity="0-3").options
    return "; ".join(template.format_map(options) for template in templates_of(entry))


def gate_metrics() -> str:
    """What `compare --fail-on` and `workload bench --gate` can be asked for."""
    return (
        f"Metrics: {codes(METRICS)}. A name that is a cause and a category means the cause.\n\n"
        f"Kinds of collectives: {codes(COLLECTIVE_KINDS)}.\n"
    )


def values() -> str:
    """Values of fields of documents and of labels of metrics that have few."""
    rows = [(text(what), codes(words)) for what, words in snapshot("vocabulary").items()]
    return table(("field", "values"), rows)
