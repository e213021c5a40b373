"""Does what was measured do? Pure: a reply and an expectation in, a result out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stepscope.core.counting import counted, form
from stepscope.core.preflight import CheckResult, Outcome
from stepscope.workflow.preflight.expectations import Expectation
from stepscope.workflow.preflight.neighbours import low_outliers
from stepscope.workflow.preflight.workers import Failure, FailureKind, Reply, Unsupported

MOST_SPREAD = 0.1
"""Of runs on a GPU: more means that clocks change, or that somebody else is at work. Healthy ones show some percent."""

_NEXT = {
    FailureKind.HUNG: "the GPU or its driver hangs: drain the node, look for XIDs, reset the GPU or reboot",
    FailureKind.DIED: "the GPU or its driver ended the process: look for XIDs, reset the GPU",
    FailureKind.ERROR: "look for XIDs and at who else is on the GPU; reset it",
}


def judge_rate(
    check: str,
    gpus: tuple[int, ...],
    reply: Reply,
    *,
    amount: float,
    unit: str,
    expectation: Expectation | None,
    judges_spread: bool = True,
) -> CheckResult:
    """A rate against what is expected.

    Args:
        check: its name.
        gpus: measured.
        reply: with `seconds`, `spread` and `runs`.
        amount: bytes or operations of a run.
        unit: of the rate.
        expectation: None where nothing is known of such a GPU: only its neighbours can judge it.
        judges_spread: whether runs that differ are worth a warning.
    """
    if not isinstance(reply, dict):
        return judge_failure(check, gpus, reply)
    seconds, spread = float(reply["seconds"]), float(reply["spread"])
    if not seconds > 0:
        return judge_failure(check, gpus, Failure(FailureKind.ERROR, f"a run took {seconds:g} s by the device's clock"))
    value = amount / seconds
    result = CheckResult(check, gpus, Outcome.PASS, value=value, unit=unit, spread=spread, num_runs=int(reply["runs"]))
    if expectation is not None:
        result = replace(
            result,
            expected=expectation.value,
            warn_below=expectation.warn_below,
            fail_below=expectation.fail_below,
            source=expectation.source,
        )
        if value < expectation.fail_below:
            return replace(result, outcome=Outcome.FAIL, detail=_too_slow(value / expectation.value))
        if value < expectation.warn_below:
            return replace(result, outcome=Outcome.WARN, detail=_too_slow(value / expectation.value))
    if judges_spread and spread > MOST_SPREAD:
        detail = f"half of the runs differ by {spread:.0%} and more: are clocks throttled, is somebody else at work?"
        return replace(result, outcome=Outcome.WARN, detail=detail)
    return result


def judge_failure(check: str, gpus: tuple[int, ...], reply: Failure | Unsupported) -> CheckResult:
    """What could not be measured: skipped where it cannot be, failed where it should have been."""
    if isinstance(reply, Unsupported):
        return CheckResult(check, gpus, Outcome.SKIPPED, reply.detail)
    return CheckResult(check, gpus, Outcome.FAIL, why_failed(reply))


def why_failed(failure: Failure) -> str:
    """How it failed, and what to do."""
    return f"{failure.detail}; {_NEXT[failure.kind]}"


def judge_products(check: str, gpus: tuple[int, ...], reply: Reply) -> CheckResult:
    """Whether the same product came out the same each time, and the exact one exact: the value is the wrong ones."""
    if not isinstance(reply, dict):
        return judge_failure(check, gpus, reply)
    differing, wrong, repeats = (int(reply[name]) for name in ("num_differing", "num_wrong", "num_repeats"))
    said = (
        [f"{differing} of {counted(repeats, 'repeat')} of one product {form(differing, 'has', 'have')} other bits"]
        if differing
        else []
    )
    said += (
        [f"{counted(wrong, 'element of an exact product is', 'elements of an exact product are')} wrong"]
        if wrong
        else []
    )
    if said:
        detail = f"{' and '.join(said)}: this GPU corrupts data silently; take it out of service"
        return CheckResult(check, gpus, Outcome.FAIL, detail, value=float(differing + wrong), expected=0.0)
    return CheckResult(check, gpus, Outcome.PASS, value=0.0, expected=0.0, num_runs=repeats + 1)


def with_wrong(result: CheckResult, replies: Iterable[Reply], what: str) -> CheckResult:
    """The result of a transfer, failed where what arrived is not what was sent.

    Args:
        result: by its rate.
        replies: with `num_wrong`, where they are answers.
        what: is wrong: "bytes".
    """
    num_wrong = sum(int(reply.get("num_wrong", 0)) for reply in replies if isinstance(reply, dict))
    if not num_wrong:
        return result
    detail = f"{num_wrong} {what} are wrong: memory or a link corrupts data silently; take it out of service"
    return replace(result, outcome=Outcome.FAIL, detail=detail)


def with_neighbours(results: Sequence[CheckResult], kinds: Mapping[int, str]) -> list[CheckResult]:
    """The results, with a warning where a GPU gives less than the others of its kind.

    Args:
        results: of all GPUs.
        kinds: the name of each.
    """
    slow: dict[int, str] = {}
    groups: dict[tuple[str, str], dict[int, int]] = {}
    for place, result in enumerate(results):
        if result.value is not None and result.unit.endswith("/s") and len(result.gpus) == 1:
            groups.setdefault((result.check, kinds[result.gpus[0]]), {})[result.gpus[0]] = place
    for members in groups.values():
        values = {index: results[place].value or 0.0 for index, place in members.items()}
        for index, outlier in low_outliers(values).items():
            lack = 1 - outlier.value / outlier.usual
            slow[members[index]] = f"{lack:.0%} less than the other GPUs of this node, which is beyond their spread"
    return [
        replace(result, outcome=Outcome.WARN, detail=slow[place])
        if place in slow and result.outcome is Outcome.PASS
        else result
        for place, result in enumerate(results)
    ]


def _too_slow(share: float) -> str:
    return f"{share:.0%} of what such a GPU gives"
