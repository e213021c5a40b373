"""Words that documents and labels of metrics hold: the values of fields that have few."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum

from stepscope.agent.config.configuration import SettingOrigin
from stepscope.core.documents.comparison import Change, GateOutcome
from stepscope.core.documents.hang import HangKind, LiveHangState
from stepscope.core.documents.jobs import Counters, JobKind, JobSource, Share, UseState
from stepscope.core.documents.machine_checks import CHECKS, CheckGroup, DoctorState, Outcome
from stepscope.core.documents.memory import MemoryCategory, OomCause
from stepscope.core.documents.what_if import WhatIfInput
from stepscope.core.hardware.gpu_catalogue import LinkKind
from stepscope.core.hardware.health import Action, HealthState, Severity
from stepscope.core.hardware.xids import XidClass
from stepscope.core.metrics.gpu import THROTTLE_REASONS
from stepscope.core.metrics.readings import MissingReason
from stepscope.core.protocol.captures import Alignment, CaptureState, EarlyStop
from stepscope.core.protocol.messages import ANSWER_STATES
from stepscope.core.vocabulary import Cause, GoodputClass, Reason, TimeCategory
from stepscope.reference_workloads.estimate.memory import EstimatedMemoryCategory as PlannedCategory
from stepscope.reference_workloads.injections.catalogue import INJECTIONS
from stepscope.reference_workloads.suite.score import CaseOutcome as SuiteOutcome
from stepscope.store.history.questions import HistoryEventKind
from stepscope.store.runs import RunStatus
from stepscope.training.captures.schedule import ProfilerState
from stepscope.workflow.history.episodes import GapReason

_KINDS: dict[str, type[Enum]] = {
    "agent's setting: origin": SettingOrigin,
    "capture: state": CaptureState,
    "capture: alignment": Alignment,
    "capture: early stop": EarlyStop,
    "comparison: change": Change,
    "comparison: gate": GateOutcome,
    "doctor: state": DoctorState,
    "fleet class: counters": Counters,
    "goodput: class": GoodputClass,
    "GPU: use": UseState,
    "hang: kind": HangKind,
    "hang: state while it lasts": LiveHangState,
    "health: action": Action,
    "health: severity": Severity,
    "health: state": HealthState,
    "health: class of an XID": XidClass,
    "history: event": HistoryEventKind,
    "history: gap": GapReason,
    "job: kind": JobKind,
    "job: share": Share,
    "job: source": JobSource,
    "ledger: heading": TimeCategory,
    "link": LinkKind,
    "memory: category": MemoryCategory,
    "memory: category of a plan": PlannedCategory,
    "memory: why it ran out": OomCause,
    "missing: reason": MissingReason,
    "preflight: group": CheckGroup,
    "preflight: outcome": Outcome,
    "run: status": RunStatus,
    "suite: outcome": SuiteOutcome,
    "verdict: cause": Cause,
    "verdict: reason": Reason,
    "what-if: input": WhatIfInput,
}


def vocabulary() -> dict[str, list[str]]:
    """What is said -> its words, sorted."""
    words = {name: [str(member.value) for member in kind] for name, kind in _KINDS.items()}
    words["GPU: throttle reason"] = [name for _, name in THROTTLE_REASONS]
    words["preflight: check"] = list(CHECKS)
    words["capture: answer of a process"] = list(ANSWER_STATES)
    words["step: state"] = [state.name.lower() for state in ProfilerState]
    for name, kind in INJECTIONS.items():
        words[f"fault: {name}"] = list(asdict(kind()))
    return {name: sorted(of_name) for name, of_name in words.items()}
