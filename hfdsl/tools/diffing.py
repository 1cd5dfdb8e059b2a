"""``hfdsl diff`` of two programs: the differences between their dataflows, deployments and plans, in words."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hfdsl.tools.facts import PARTS, Fact, Facts
from hfdsl.tools.importing import UsageError
from hfdsl.tools.output import FINDINGS, OK, machine, say, show_json

MAX_SHOWN = 160
"""How many signs of a text people are shown."""


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """A difference of two programs in one aspect of a subject: both texts, None if a program lacks the aspect.

    Without an aspect, the subject as a whole is in one of them alone, or has no other aspects.
    """

    subject: str
    aspect: str
    before: str | None
    after: str | None

    @property
    def swapped(self) -> ProgramDifference:
        """The difference in the other direction."""
        return replace(self, before=self.after, after=self.before)

    def __str__(self) -> str:
        subject = f"{self.subject}: {self.aspect} " if self.aspect else f"{self.subject}: "
        if self.before is not None and self.after is not None:
            return f"{subject}{_short(self.before)} -> {_short(self.after)}"
        side, text = ("A", self.before) if self.after is None else ("B", self.after)
        return f"{subject}only in {side}{f', {_short(text)}' if text else ''}"


def differences(first: Facts, second: Facts) -> tuple[ProgramDifference, ...]:
    r"""List the differences of two programs, in the order of the programs.

    Deployments and plans are compared where both programs have one; otherwise that is one difference.

    >>> first = [Fact("role actor", "annotation", "Actor"), Fact("role critic", "annotation", "Critic")]
    >>> second = [Fact("role actor", "annotation", "Policy")]
    >>> print(*differences(Facts({"program": first}), Facts({"program": second, "deployment": ()})), sep="\n")
    role actor: annotation Actor -> Policy
    role critic: only in A
    deployment: only in B
    """
    listed: list[ProgramDifference] = []
    for part in PARTS:
        if part in first.parts and part in second.parts:
            listed += _compared((first.parts[part], second.parts[part]), (first.summaries, second.summaries))
        elif part in first.parts or part in second.parts:
            before, after = ("" if part in facts.parts else None for facts in (first, second))
            return (*listed, ProgramDifference(part, "", before, after))  # without it there is nothing behind it
    return tuple(listed)


def _compared(sides: Sequence[Sequence[Fact]], summaries: Sequence[Mapping[str, str]]) -> Iterator[ProgramDifference]:
    texts = [{(fact.subject, fact.aspect): fact.text for fact in facts} for facts in sides]
    places = [{key: place for place, key in enumerate(facts)} for facts in texts]
    aspects: dict[str, list[str]] = {}

    def place(key: tuple[str, str]) -> tuple[int, tuple[str, str]]:
        """A sort key for facts, independent of the order of the two programs."""
        return min(side_places[key] for side_places in places if key in side_places), key

    for subject, aspect in sorted({*texts[0], *texts[1]}, key=place):
        aspects.setdefault(subject, []).append(aspect)
    for subject, named in aspects.items():
        in_first, in_second = (any((subject, aspect) in facts for aspect in named) for facts in texts)
        if in_first and in_second:
            for aspect in named:
                before, after = (facts.get((subject, aspect)) for facts in texts)
                if before != after:
                    yield ProgramDifference(subject, aspect, before, after)
        else:
            alone = 0 if in_first else 1
            summary = summaries[alone].get(subject) or texts[alone].get((subject, "")) or ""
            yield ProgramDifference(subject, "", summary if in_first else None, summary if in_second else None)


# -- for people


def in_words(differences: Sequence[ProgramDifference]) -> Iterator[str]:
    """A line per difference; columns, and calls of one method, with the same difference share a line.

    >>> calls = ["call actor.update", "call actor.update #2"]
    >>> list(in_words([ProgramDifference(call, f"reads x.{name}", "a", "b") for call in calls for name in ("p", "q")]))
    ['call actor.update #1 to #2: reads x (p, q) a -> b']
    >>> list(in_words([ProgramDifference("call actor.update #2", "argument lr", "1.0", "2.0")]))
    ['call actor.update #2: argument lr 1.0 -> 2.0']
    """
    merged = [_of_columns(alike) for alike in _grouped(differences, _but_column)]
    return (str(_of_calls(alike)) for alike in _grouped(merged, _but_number))


def _grouped(
    differences: Iterable[ProgramDifference], key: Callable[[ProgramDifference], object]
) -> list[list[ProgramDifference]]:
    groups: dict[object, list[ProgramDifference]] = {}
    for difference in differences:
        groups.setdefault(key(difference), []).append(difference)
    return list(groups.values())


COLUMN = re.compile(r"(reads \w+)\.\w*|(column) \w*")
NUMBERED = re.compile(r"(.*?)(?: #(\d+))?")


def _but_column(difference: ProgramDifference) -> object:
    column = COLUMN.fullmatch(difference.aspect)
    head = (column[1] or column[2]) if column else difference.aspect
    return head, replace(difference, aspect="")


def _of_columns(alike: list[ProgramDifference]) -> ProgramDifference:
    """One line for columns with the same difference."""
    first, columns = alike[0], [re.split(r"[. ]", difference.aspect)[-1] for difference in alike]
    if first.aspect.startswith("reads "):
        named = ", ".join(filter(None, columns))
        return replace(first, aspect=first.aspect.partition(".")[0] + (f" ({named})" if named else ""))
    return first if len(alike) == 1 else replace(first, aspect=f"columns {', '.join(columns)}")


def _split(subject: str) -> tuple[str, int]:
    """A call without its number, and the number."""
    numbered = NUMBERED.fullmatch(subject)
    return (numbered[1], int(numbered[2] or 1)) if numbered else (subject, 1)


def _but_number(difference: ProgramDifference) -> object:
    return replace(_of_any_part(difference), subject=_split(difference.subject)[0])


def _of_calls(alike: list[ProgramDifference]) -> ProgramDifference:
    """One line for calls with the same difference, apart from the mini-batch that each reads."""
    if len(alike) == 1:
        return alike[0]
    subject, numbers = _split(alike[0].subject)[0], sorted(_split(difference.subject)[1] for difference in alike)
    consecutive = numbers == list(range(numbers[0], numbers[-1] + 1))
    named = f"#{numbers[0]} to #{numbers[-1]}" if consecutive else ", ".join(f"#{number}" for number in numbers)
    return replace(_of_any_part(alike[0]), subject=f"{subject} {named}")


def _of_any_part(difference: ProgramDifference) -> ProgramDifference:
    """The difference without the indices of mini-batches."""
    before, after = (text and re.sub(r"\)\[\d+\]", ")[i]", text) for text in (difference.before, difference.after))
    return replace(difference, before=before, after=after)


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


# -- the command


def show_program_differences(arguments: argparse.Namespace) -> int:
    """The command for two programs.

    Raises:
        UsageError: where one of them cannot be read.
    """
    first, second = read([arguments.first, arguments.second], arguments.set, arguments.cluster)
    listed = differences(first, second)
    if machine(arguments):
        show_json([asdict(difference) for difference in listed])
    elif listed:
        say(f"A  {arguments.first}\nB  {arguments.second}\n", *in_words(listed), sep="\n")
    else:
        count = sum(map(len, first.parts.values()))
        say(f"the {count} facts about the two programs are the same")
    return FINDINGS if listed else OK


def read(targets: Sequence[str], sizes: Sequence[str], cluster: str | None) -> list[Facts]:
    """Read the facts about targets, each in a separate process.

    Raises:
        UsageError: where one of them cannot be read.
    """
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    started = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "hfdsl.tools.facts", json.dumps([target, *sizes]), cluster or ""],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path},
        )
        for target in targets
    ]
    answers = [(process.communicate(), process.returncode) for process in started]
    return [_read(target, code, *streams) for target, (streams, code) in zip(targets, answers, strict=True)]


def _read(target: str, code: int, out: str, err: str) -> Facts:
    try:
        answer = json.loads(out)
    except ValueError:
        raise UsageError(f"reading '{target}' ended with exit code {code} and said\n\n{err.strip()}") from None
    if "failure" in answer:
        raise UsageError(answer["failure"])
    parts = {name: [Fact(*fact) for fact in facts] for name, facts in answer["parts"].items()}
    return Facts(parts, answer["summaries"])
