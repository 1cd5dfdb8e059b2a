"""Laws of a queue's decisions, over the log of a simulation or a run, or one written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.schedule import QueueSpec


class BrokenQueueError(AssertionError):
    """The decisions of a queue break laws, which the text lists."""


@dataclass(slots=True)
class _Log:
    """The state of a queue while its log is read: the version and prompt of each dispatch, and the groups under way."""

    spec: QueueSpec
    version: dict[int, int] = field(default_factory=dict)
    prompt: dict[int, int] = field(default_factory=dict)
    on_the_way: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    updates: int = 0


def _bound(log: _Log, decision: Decision) -> Iterator[str]:
    if decision.kind == "take":
        for group in set(decision.groups) - set(decision.masked):
            staleness = decision.version - log.version.get(group, decision.version)
            if staleness > log.spec.lag:
                yield f"group {group} was trained {staleness} updates after its dispatch, with lag {log.spec.lag}"


def _whole(log: _Log, decision: Decision) -> Iterator[str]:
    if decision.kind == "take" and len(decision.groups) != log.spec.batch:
        yield f"update {decision.version} took {len(decision.groups)} groups instead of {log.spec.batch}"
    if decision.kind == "dispatch" and len(decision.groups) != log.spec.dispatch:
        yield f"a dispatch has {len(decision.groups)} groups instead of {log.spec.dispatch}"


def _once(log: _Log, decision: Decision) -> Iterator[str]:
    for group in decision.groups:
        if decision.kind == "dispatch" and group in log.version:
            yield f"group {group} was dispatched twice"
        if decision.kind != "dispatch" and group not in log.on_the_way:
            yield f"group {group}, of a {decision.kind}, is not on its way"
    if (
        decision.kind == "dispatch"
    ):  # what a queue in front of another one has taken may be dropped later, and come again
        gone = log.taken if log.spec.trains else []
        present = {log.prompt[group] for group in (*log.on_the_way, *gone) if group in log.prompt}
        for prompt in decision.prompts:
            if prompt in present:
                yield f"prompt {prompt} is dispatched while a group of it is on its way or trained"


def _places(log: _Log, decision: Decision) -> Iterator[str]:
    if decision.kind == "dispatch" and len(log.on_the_way) + len(decision.groups) > log.spec.places:
        yield f"{len(log.on_the_way) + len(decision.groups)} groups are on their way in {log.spec.places} places"


def _versions(log: _Log, decision: Decision) -> Iterator[str]:
    if log.spec.trains and decision.version != log.updates:
        yield f"a {decision.kind} under version {decision.version} after {log.updates} updates"
    if decision.version < log.updates:
        yield f"a {decision.kind} under version {decision.version} after one under version {log.updates}"


def _order(log: _Log, decision: Decision) -> Iterator[str]:
    if decision.kind == "take" and list(decision.groups) != sorted(decision.groups):
        yield f"update {decision.version} has groups out of the order of dispatch"
    if log.spec.late == "wait" and decision.kind in ("take", "drop"):
        before = [group for group in log.on_the_way if group < max(decision.groups) and group not in decision.groups]
        if before or decision.kind == "drop" or decision.masked:
            yield f"update {decision.version} takes groups before {before}, and the queue waits in order"


def _loads(log: _Log, decision: Decision) -> Iterator[str]:
    steps, versions = zip(*decision.loaded, strict=True) if decision.loaded else ((), ())
    if decision.kind == "load" and (list(steps) != sorted({*steps}) or list(versions) != sorted({*versions})):
        yield f"call {decision.call} loads {list(decision.loaded)}: versions only grow, from token to token"
    for group in decision.groups if versions else ():
        if min(versions) < log.version.get(group, 0):
            yield f"group {group} has tokens of version {min(versions)}, and was dispatched under {log.version[group]}"


QUEUE_LAWS: dict[str, Callable[[_Log, Decision], Iterator[str]]] = {
    "no group is trained with more staleness than the lag, unless it is masked": _bound,
    "batches and dispatches are whole": _whole,
    "no group is dispatched, taken, dropped or lost twice, and no prompt is trained twice": _once,
    "no more groups are on their way than there are places": _places,
    "the version is the number of updates": _versions,
    "groups are taken in the order of dispatch; a queue that waits lets none pass another": _order,
    "a call loads newer weights only, and none that are older than its dispatch": _loads,
}
"""The laws by their statements."""


def broken_laws(spec: QueueSpec, decisions: Iterable[Decision]) -> tuple[str, ...]:
    """The laws that the decisions of a queue break, in a sentence each; none if all hold.

    >>> log = [Decision("dispatch", "scored", 0, (0,), (7,)), Decision("take", "scored", 0, (0,))]
    >>> broken_laws(QueueSpec("scored", lag=0), [*log, *log])[0]
    'group 0 was dispatched twice'
    """
    log, problems = _Log(spec), list[str]()
    for decision in decisions:
        if decision.queue == spec.name:
            laws = [_loads] if decision.kind == "load" else list(QUEUE_LAWS.values())  # time decides a load
            problems += [text for law in laws for text in law(log, decision)]
            _follow(log, decision)
    return tuple(problems)


def check_decisions(spec: QueueSpec, decisions: Sequence[Decision]) -> None:
    """Check the laws.

    Raises:
        BrokenQueueError: for decisions that break one.

    >>> log = [Decision("dispatch", "scored", 0, (0,), (7,)), Decision("take", "scored", 0, (0,))]
    >>> check_decisions(QueueSpec("scored", lag=0), log)
    >>> check_decisions(QueueSpec("scored", lag=0), [*log, Decision("dispatch", "scored", 0, (1,), (8,))])
    Traceback (most recent call last):
    hfdsl.testing.queues.BrokenQueueError: a dispatch under version 0 after 1 updates
    a dispatch under version 0 after one under version 1
    """
    if problems := broken_laws(spec, decisions):
        raise BrokenQueueError("\n".join(problems))


def _follow(log: _Log, decision: Decision) -> None:
    if not log.spec.trains:  # others count the updates
        log.updates = max(log.updates, decision.version)
    if decision.kind == "dispatch":
        log.version |= dict.fromkeys(decision.groups, decision.version)
        log.prompt |= dict(zip(decision.groups, decision.prompts, strict=False))
        log.on_the_way += decision.groups
        return
    if decision.kind == "load":
        return
    log.on_the_way = [group for group in log.on_the_way if group not in decision.groups]
    if decision.kind == "take":
        log.taken += decision.groups
        log.updates += log.spec.trains
