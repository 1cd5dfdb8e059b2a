"""Findings about settings: they name keys, values and places, and say which values would do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hfdsl.check.codes import CODES
from hfdsl.check.findings import Edit, Finding, Fix, Label
from hfdsl.graph.spans import NOWHERE
from hfdsl.interop.settings import Configuration, NotKnown, Setting, is_integer
from hfdsl.interop.text import Unread


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding before its help: ``repairs`` are keys of sizes, one of which another value may set right."""

    finding: Finding
    repairs: tuple[str, ...] = ()


Rule = Callable[[Configuration], Iterator[Problem]]

TRIED = re.compile(r"(?:^set|and) (\S+) to (\S+)")
"""A sentence of ``Finding.help``: every value in it has been tried."""

MAX_TRIALS = 300
"""How many values of a size are tried in each direction on the way to the nearest one that works."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The findings of the rules, and the rules that could not decide, with the reason."""

    findings: tuple[Finding, ...]
    not_judged: tuple[Unread, ...]


def judge(configuration: Configuration, rules: Sequence[Rule]) -> Judged:
    """Ask every rule. One that meets a value that is not known says nothing from there on."""
    problems, undecided = list[tuple[Rule, Problem]](), dict[Unread, list[str]]()
    for rule in rules:
        try:
            for problem in rule(configuration):
                problems.append((rule, problem))  # those before a value that is not known stay
        except NotKnown as error:
            topic = (rule.__doc__ or rule.__name__).split("\n", maxsplit=1)[0].rstrip(".")
            reason = Unread(f"'{error.key}' is not known: {error.reason}", error.span)
            undecided.setdefault(reason, []).append(topic)
    arithmetic = [rule for rule, problem in problems if problem.repairs]
    repairs = Repairs(
        configuration=configuration,
        rules=rules,
        failing=frozenset(rule for rule, _ in problems),
        arithmetic=frozenset(arithmetic),
        keys=tuple(
            dict.fromkeys(configuration.owner(problem.repairs[0]) for _, problem in problems if problem.repairs)
        ),
    )
    not_judged = tuple(replace(why, reason=f"{_together(topics)}: {why.reason}") for why, topics in undecided.items())
    return Judged(tuple(repairs.helped(rule, problem) for rule, problem in problems), not_judged)


def _together(topics: Sequence[str]) -> str:
    """The topics of rules that stop at one value: the first, and the number of the others.

    >>> _together(["Sizes are positive"]), _together(["Rows divide", "Ranks train equally", "Samples are used"])
    ('Sizes are positive', 'Rows divide, and 2 more rules')
    """
    more = len(topics) - 1
    return topics[0] if not more else f"{topics[0]}, and {more} more rule{'s' if more > 1 else ''}"


@dataclass(frozen=True)
class Repairs:
    """The search for sizes that set a configuration right: ``failing`` rules do not hold, ``arithmetic`` of sizes.

    ``keys`` are the sizes that the problems of the latter are about.
    """

    configuration: Configuration
    rules: Sequence[Rule]
    failing: frozenset[Rule]
    arithmetic: frozenset[Rule]
    keys: tuple[str, ...] = ()

    def helped(self, rule: Rule, problem: Problem) -> Finding:
        """The finding of a problem, with the nearest sizes that satisfy everything, or at least its own rule."""
        sentences, fixes = list[str](), list[tuple[int, Fix]]()
        if problem.repairs and self._joint:
            words = " and ".join(f"{key} to {value}" for key, value in self._joint)
            edits = [fix.edits for key, value in self._joint for fix in setting_fix(self.configuration, key, value)[1]]
            joint = Fix(f"set {words}", tuple(edit for key_edits in edits for edit in key_edits))
            whole = (joint,) if len(edits) == len(self._joint) else ()
            return _helped(problem.finding, [joint.title], whole)
        for key in dict.fromkeys(self.configuration.owner(key) for key in problem.repairs):
            current = self.configuration.known(key)
            if not is_integer(current):
                continue
            own_rule = frozenset({rule})
            values = (
                self._nearest(key, current, self.arithmetic)
                or self._nearest(key, current, own_rule)
                or self._nearest(key, current, own_rule, warnings=True)
            )
            if values:
                sentences.append(f"set {key} to {' or '.join(map(str, values))}")
                fixes += [(abs(v - current), fix) for v in values for fix in setting_fix(self.configuration, key, v)[1]]
        ordered = tuple(fix for _, fix in sorted(fixes, key=lambda pair: pair[0]))
        return _helped(problem.finding, sentences, ordered)

    @cached_property
    def _joint(self) -> tuple[tuple[str, int], ...]:
        """Two sizes that together satisfy everything, the nearest, where each would need another value of its own."""
        current = {key: value for key in self.keys if is_integer(value := self.configuration.known(key))}
        if len(current) < 2 or any(self._nearest(key, value, self.arithmetic) for key, value in current.items()):
            return ()
        pairs = list[tuple[tuple[str, int], ...]]()
        for first, size in current.items():
            for rule in self.arithmetic:
                for value in self._nearest(first, size, frozenset({rule}), warnings=True):
                    changed = self._with(first, value)
                    others = [(key, size) for key, size in current.items() if key != first]
                    pairs += [
                        ((first, value), (key, nearest))
                        for key, size in others
                        for nearest in changed._nearest(key, size, changed.arithmetic)
                    ]

        def change(pair: tuple[tuple[str, int], ...]) -> float:
            return sum(abs(value - current[key]) / current[key] for key, value in pair)

        nearest_pair = min(pairs, key=change, default=())
        return tuple(sorted(nearest_pair, key=lambda size: self.keys.index(size[0])))

    def _with(self, key: str, value: int) -> Repairs:
        """The search after one size was set: for what then does not hold, and did or was to be cured."""
        configuration = self.configuration.with_value(key, value)
        failing = frozenset(rule for rule in self.rules if _fails(rule, configuration))
        return Repairs(
            configuration=configuration,
            rules=self.rules,
            failing=failing,
            arithmetic=failing - (self.failing - self.arithmetic),
        )

    def _nearest(self, key: str, current: int, cured: frozenset[Rule], *, warnings: bool = False) -> list[int]:
        """The nearest smaller and larger value with which none of ``cured`` fails and no other rule begins to.

        With ``warnings``, other rules may begin to warn.
        """
        readers = [rule for rule in self.rules if key in self._reads[rule]]
        needed = [rule for rule in readers if rule in cured]
        if len(needed) < len(cured):
            return []  # a rule that does not read the key fails whatever its value is
        unaffected = [rule for rule in readers if rule not in self.failing]
        accepted = list[int]()
        for step in (-1, 1):
            for value in range(current + step, current + step * (MAX_TRIALS + 1), step):
                if value < 1:
                    break
                trial = self.configuration.with_value(key, value)
                if not any(_fails(rule, trial) for rule in needed) and not any(
                    _fails(rule, trial, errors=warnings) for rule in unaffected
                ):
                    accepted.append(value)
                    break
        return accepted

    @cached_property
    def _reads(self) -> dict[Rule, frozenset[str]]:
        """The keys that each rule reads: one that does not read a key says the same whatever the key's value is."""
        return {rule: _read_by(rule, self.configuration) for rule in self.rules}


def _helped(finding: Finding, sentences: Sequence[str], fixes: Sequence[Fix]) -> Finding:
    return replace(finding, help=tuple(sentences), fixes=(*finding.fixes, *fixes))


class _Recorded(Mapping[str, Setting]):
    """Settings that remember which of them are looked up."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings, self.keys_read = settings, set[str]()

    def __getitem__(self, key: str) -> Setting:
        self.keys_read.add(key)
        return self._settings[key]

    def __iter__(self) -> Iterator[str]:
        self.keys_read.update(self._settings)
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


def _read_by(rule: Rule, configuration: Configuration) -> frozenset[str]:
    recorded = _Recorded(configuration.explicit)
    _fails(rule, replace(configuration, explicit=recorded))
    return frozenset(recorded.keys_read)


def _fails(rule: Rule, configuration: Configuration, *, errors: bool = False) -> bool:
    """Whether a rule reports something; with ``errors``, an error."""
    severities = set[str]()
    with suppress(NotKnown):
        severities.update(CODES[problem.finding.code].severity for problem in rule(configuration))
    return "error" in severities if errors else bool(severities)


def finding(
    configuration: Configuration,
    code: str,
    message: str,
    *keys: str,
    label: str = "",
    notes: Sequence[str] = (),
    advice: Sequence[str] = (),
    fixes: Sequence[Fix] = (),
    repairs: Sequence[str] = (),
) -> Problem:
    """A finding about keys: at the first that the user has written, with the others beside it.

    ``repairs`` are keys of sizes, of each of which the nearest values that satisfy everything become its help;
    ``advice`` has not been tried, and stands among its notes.
    """
    owners = list(dict.fromkeys(configuration.owner(key) for key in keys))
    explicit = [key for key in owners if configuration.explicit.get(key) is not None]
    labels = [Label(configuration.explicit[key].span, _label(configuration, key)) for key in explicit]
    if not labels:
        labels = [Label(configuration.place, label)]
    elif label:
        labels[0] = Label(labels[0].span, label)
    defaults = [key for key in owners if key not in explicit and configuration.has(key)]
    noted = [f"{key} = {value_text(configuration.known(key))} by default" for key in defaults if key not in message]
    notes = (*notes, *advice, *noted)
    result = Finding(code, message, primary=labels[0], related=tuple(labels[1:]), notes=notes, fixes=tuple(fixes))
    return Problem(result, tuple(repairs))


def _label(configuration: Configuration, key: str) -> str:
    setting = configuration.explicit[key]
    elsewhere = setting.value_span not in (NOWHERE, setting.span) and setting.value_span.line != setting.span.line
    place = f", from line {setting.value_span.line}" if elsewhere else ""
    return f"{key} = {value_text(configuration.known(key))}{place}"


def value_text(value: Any) -> str:
    """A value as configurations write it.

    >>> [value_text(value) for value in (None, True, 1e-6, "vllm", [1], "")]
    ['null', 'True', '1e-06', 'vllm', '[1]', "''"]
    """
    return "null" if value is None else str(value) or "''"


def override(finding: Finding) -> tuple[tuple[str, str], ...]:
    """The keys and nearest values that a finding's help proposes first, for settings that no file has.

    >>> override(Finding("HF976", "", Label(NOWHERE), help=("set data.train_batch_size to 96 or 112",)))
    (('data.train_batch_size', '96'),)
    """
    return next((tuple(settings) for sentence in finding.help if (settings := TRIED.findall(sentence))), ())


def setting_fix(configuration: Configuration, key: str, value: Any) -> tuple[str, tuple[Fix, ...]]:
    """Set a key: in words and, if it is written in a file, as an edit."""
    owner = configuration.owner(key)
    setting = configuration.explicit.get(owner)
    title = f"set {owner} to {value_text(value)}"
    if (
        setting is None
        or setting.text is None
        or setting.value_span == NOWHERE
        or setting.value_span.file.startswith("<")
    ):
        return title, ()
    return title, (Fix(title, (Edit(setting.value_span, value_text(value)),)),)
