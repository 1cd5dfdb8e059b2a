"""Laws of a queue's decisions, checked on the log of a simulation or a run, or on a handwritten one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.links import QueueLinks
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.testing.arguments import items_of, nothing, refused


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


def _only_late(log: _Log, decision: Decision) -> Iterator[str]:
    discipline = log.spec.late
    if decision.kind == "drop" and discipline not in ("drop", "refill"):
        yield f"a queue with late='{discipline}' drops {list(decision.groups)}"
    if decision.masked and discipline != "mask":
        yield f"a queue with late='{discipline}' masks {list(decision.masked)}"
    verb, gone = ("dropped", decision.groups) if decision.kind == "drop" else ("masked", decision.masked)
    for group in gone:
        staleness = decision.version - log.version.get(group, decision.version)
        if group in log.version and staleness <= log.spec.lag:
            yield f"group {group} was {verb} {staleness} updates after its dispatch, within lag {log.spec.lag}"


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
    ):  # what a queue in front of another one has taken may be dropped later, and dispatched again
        trained = log.taken if log.spec.trains else []
        present = {log.prompt[group] for group in (*log.on_the_way, *trained) if group in log.prompt}
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
    if log.spec.late == "wait" and decision.kind == "take":
        before = [
            group
            for group in log.on_the_way
            if group < max(decision.groups, default=-1) and group not in decision.groups
        ]
        if before:
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
    "only groups that exceed the lag are dropped or masked, as the discipline says": _only_late,
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
    log, problems = _Log(_spec_of("broken_laws", spec)), list[str]()
    for decision in _decisions_of("broken_laws", decisions):
        if decision.queue == spec.name:
            laws = [_loads] if decision.kind == "load" else list(QUEUE_LAWS.values())  # time decides a load
            problems += [text for law in laws for text in law(log, decision)]
            _follow(log, decision)
    return tuple(problems)


def check_decisions(spec: QueueSpec, decisions: Iterable[Decision]) -> None:
    """Check the laws.

    Raises:
        BrokenQueueError: for decisions that break one.
        DefinitionError: HF922 if all decisions are of other queues; HF921 for an argument of another kind.

    >>> log = [Decision("dispatch", "scored", 0, (0,), (7,)), Decision("take", "scored", 0, (0,))]
    >>> check_decisions(QueueSpec("scored", lag=0), log)
    >>> check_decisions(QueueSpec("scored", lag=0), [*log, Decision("dispatch", "scored", 0, (1,), (8,))])
    Traceback (most recent call last):
    hfdsl.testing.queues.BrokenQueueError: a dispatch under version 0 after 1 updates
    a dispatch under version 0 after one under version 1
    """
    spec, decisions = _spec_of("check_decisions", spec), _decisions_of("check_decisions", decisions)
    if decisions and not any(decision.queue == spec.name for decision in decisions):
        names = ", ".join(f"'{name}'" for name in dict.fromkeys(decision.queue for decision in decisions))
        raise nothing("check_decisions", f"no decision is one of '{spec.name}', but of {names}")
    if problems := broken_laws(spec, decisions):
        raise BrokenQueueError("\n".join(problems))


def _spec_of(check: str, spec: object) -> QueueSpec:
    if not isinstance(spec, QueueSpec):
        raise refused(check, "spec", "the QueueSpec of a queue, as in [queue.spec for queue in running.queues]", spec)
    return spec


def _decisions_of(check: str, decisions: object) -> tuple[Decision, ...]:
    return items_of(check, "decisions", decisions, Decision, "decisions in a list, as from_lines(text) reads a log")


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


def check_prompts(links: QueueLinks, specs: Sequence[QueueSpec], decisions: Iterable[Decision]) -> None:
    """Check that no prompt is lost or trained twice in consecutive and parallel queues.

    A stage that dispatches prompts takes those that ``late="refill"`` has sent back, and then the next ones of its
    loader, in order. A stage between two queues hands on what it takes, all of it, before anything else is decided. So
    a prompt leaves the queues only where it is trained, or where a filter or ``late="drop"`` removes it.

    Raises:
        BrokenQueueError: for decisions that break this.
        DefinitionError: HF921 for an argument of another kind.

    >>> links, specs = QueueLinks(), [QueueSpec("scored", lag=1, late="refill")]
    >>> log = [Decision("dispatch", "scored", 0, (0,), (0,)), Decision("drop", "scored", 2, (0,))]
    >>> check_prompts(links, specs, [*log, Decision("dispatch", "scored", 2, (1,), (0,))])
    >>> check_prompts(links, specs, [*log, Decision("dispatch", "scored", 2, (1,), (1,))])
    Traceback (most recent call last):
    hfdsl.testing.queues.BrokenQueueError: prompts [1] come into 'scored', where [0] should come
    """
    check, takes = "check_prompts", "the QueueSpec of every queue in a list"
    if not isinstance(links, QueueLinks):
        raise refused(check, "links", "the QueueLinks of a plan, as in queue_stages(plan).links", links)
    places = _PromptPlaces(links, items_of(check, "specs", specs, QueueSpec, takes))
    problems = [text for decision in _decisions_of(check, decisions) for text in places.problems(decision)]
    if places.coming:
        problems.append(f"prompts {list(next(iter(places.coming.values())))} were taken, and no queue has them")
    if problems:
        raise BrokenQueueError("\n".join(problems))


@dataclass(slots=True)
class _Source:
    """The prompts of a stage that dispatches them: those that come ``again``, by queue, and the next of its loader."""

    again: dict[int, list[int]]
    new: int = 0

    def next(self, count: int) -> tuple[int, ...]:
        again = [prompt for prompts in self.again.values() for prompt in prompts][:count]
        self.again = {queue: [p for p in prompts if p not in again] for queue, prompts in self.again.items()}
        new, self.new = self.new, self.new + count - len(again)
        return (*again, *range(new, self.new))


class _PromptPlaces:
    """Where prompts are while a log is read.

    ``coming`` has by queue the prompts that the stage in front of it has begun with, until they are dispatched.
    """

    def __init__(self, links: QueueLinks, specs: Sequence[QueueSpec]) -> None:
        self._links, self._specs = links, specs
        self._queues = {spec.name: index for index, spec in enumerate(specs)}
        self._sources = {stage: _Source({queue: [] for queue in links.behind(stage)}) for stage in links.sources}
        self._source_of = {queue: source for source in self._sources.values() for queue in source.again}
        self._queued: list[dict[int, int]] = [{} for _ in specs]  # by queue and group
        self._trained: list[set[int]] = [set() for _ in specs]
        self.coming: dict[int, tuple[int, ...]] = {}

    def problems(self, decision: Decision) -> Iterator[str]:
        """Follow a decision, and yield the laws that it breaks."""
        queue = self._queues.get(decision.queue)
        if queue is None:
            yield f"a {decision.kind} is of '{decision.queue}', and the queues are {', '.join(map(repr, self._queues))}"
        elif decision.kind == "dispatch":
            yield from self._come(queue, decision)
        elif decision.kind != "load":
            yield from self._leave(queue, decision)

    def _come(self, queue: int, decision: Decision) -> Iterator[str]:
        if queue not in self.coming:
            feeds = self._links.of[queue].feeds
            chosen = self._sources[feeds].next(len(decision.prompts)) if feeds in self._sources else ()
            self.coming |= dict.fromkeys(self._links.fed_by(feeds), chosen)
        if len(decision.groups) != len(decision.prompts):
            yield f"a dispatch of '{decision.queue}' has {len(decision.groups)} groups, {len(decision.prompts)} prompts"
        if (expected := self.coming.pop(queue)) != decision.prompts:
            yield f"prompts {list(decision.prompts)} come into '{decision.queue}', where {list(expected)} should come"
        self._queued[queue] |= zip(decision.groups, decision.prompts, strict=False)

    def _leave(self, queue: int, decision: Decision) -> Iterator[str]:
        if self.coming:
            names = ", ".join(f"'{self._specs[index].name}'" for index in self.coming)
            yield f"a {decision.kind} of '{decision.queue}' comes before what was begun has come into {names}"
            self.coming.clear()
        queued, trained = self._queued[queue], self._trained[queue]
        prompts = tuple(queued.pop(group) for group in decision.groups if group in queued)
        if len(prompts) < len(decision.groups):
            yield f"a {decision.kind} has groups that are not in '{decision.queue}': {list(decision.groups)}"
        if decision.kind == "take" and self._specs[queue].trains:
            yield from (f"prompt {p} is trained twice behind '{decision.queue}'" for p in prompts if p in trained)
            trained.update(prompts)
        elif decision.kind == "take":
            self.coming |= dict.fromkeys(self._links.fed_by(self._links.of[queue].reads), prompts)
        elif decision.kind == "drop" and self._specs[queue].late == "refill":
            self._source_of[queue].again[queue] += prompts
