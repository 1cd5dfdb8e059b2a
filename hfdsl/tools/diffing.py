"""``hfdsl diff`` of two programs: what differs between their dataflows, deployments and plans, in words."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from hfdsl.tools.facts import PARTS, Fact, Facts
from hfdsl.tools.importing import UsageError
from hfdsl.tools.output import FINDINGS, OK, machine, say, show_json

MAX_SHOWN = 160
"""How many signs of a text people are shown."""


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """What one program says of an aspect of a subject, and what the other does; None where that does not have it.

    Without an aspect, the subject as a whole is in one of them alone, or has no other aspects.
    """

    subject: str
    aspect: str
    before: str | None
    after: str | None

    @property
    def swapped(self) -> ProgramDifference:
        """The same difference seen from the other program."""
        return replace(self, before=self.after, after=self.before)

    def __str__(self) -> str:
        what = f"{self.subject}: {self.aspect} " if self.aspect else f"{self.subject}: "
        if self.before is not None and self.after is not None:
            return f"{what}{_short(self.before)} -> {_short(self.after)}"
        side, text = ("A", self.before) if self.after is None else ("B", self.after)
        return f"{what}only in {side}{f', {_short(text)}' if text else ''}"


def differences(first: Facts, second: Facts) -> tuple[ProgramDifference, ...]:
    r"""What differs, in the order of the programs.

    Deployments and plans are compared where both programs have one; otherwise that is one difference.

    >>> first = [Fact("role actor", "annotation", "Actor"), Fact("role critic", "annotation", "Critic")]
    >>> second = [Fact("role actor", "annotation", "Policy")]
    >>> print(*differences(Facts({"program": first}), Facts({"program": second, "deployment": ()})), sep="\n")
    role actor: annotation Actor -> Policy
    role critic: only in A
    deployment: only in B
    """
    found: list[ProgramDifference] = []
    for part in PARTS:
        if part in first.parts and part in second.parts:
            found += _compared((first.parts[part], second.parts[part]), (first.summaries, second.summaries))
        elif part in first.parts or part in second.parts:
            before, after = ("" if part in facts.parts else None for facts in (first, second))
            return (*found, ProgramDifference(part, "", before, after))  # without it there is nothing behind it
    return tuple(found)


def _compared(sides: Sequence[Sequence[Fact]], summaries: Sequence[Mapping[str, str]]) -> Iterator[ProgramDifference]:
    texts = [{(fact.subject, fact.aspect): fact.text for fact in facts} for facts in sides]
    places = [{key: place for place, key in enumerate(known)} for known in texts]
    aspects: dict[str, list[str]] = {}
    # By where a fact stands in either program, which is the same for both orders of the two.
    for subject, aspect in sorted(
        {*texts[0], *texts[1]}, key=lambda key: (min(p.get(key, len(p)) for p in places), key)
    ):
        aspects.setdefault(subject, []).append(aspect)
    for subject, named in aspects.items():
        in_first, in_second = (any((subject, aspect) in known for aspect in named) for known in texts)
        if in_first and in_second:
            for aspect in named:
                before, after = (known.get((subject, aspect)) for known in texts)
                if before != after:
                    yield ProgramDifference(subject, aspect, before, after)
        else:
            alone = 0 if in_first else 1
            summary = summaries[alone].get(subject) or texts[alone].get((subject, "")) or ""
            yield ProgramDifference(subject, "", summary if in_first else None, summary if in_second else None)


# -- for people


def in_words(found: Sequence[ProgramDifference]) -> Iterator[str]:
    """A line for each difference; one for columns of a port, a result or a record that differ alike.

    >>> same = [ProgramDifference("call actor.update", f"reads batch.{name}", "a", "b") for name in ("ids", "mask")]
    >>> list(in_words(same))
    ['call actor.update: reads batch (ids, mask) a -> b']
    """
    for (head, *_), alike in groupby(found, key=_alike):
        first, *others = alike
        columns = [re.split(r"[. ]", difference.aspect)[-1] for difference in (first, *others)]
        if head.startswith("reads "):
            named = ", ".join(filter(None, columns))
            first = replace(first, aspect=f"{head} ({named})" if named else head)
        elif others:
            first = replace(first, aspect=f"columns {', '.join(columns)}")
        yield str(first)


def _alike(difference: ProgramDifference) -> tuple[str, str, str | None, str | None]:
    """What differences have in common that are shown as one: the aspect but for the column, and the rest."""
    column = re.fullmatch(r"(reads \w+)\.\w*|(column) \w*", difference.aspect)
    head = (column[1] or column[2]) if column else difference.aspect
    return head, difference.subject, difference.before, difference.after


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


# -- the command


def show_program_differences(arguments: argparse.Namespace) -> int:
    """The command for two programs.

    Raises:
        UsageError: where one of them cannot be read.
    """
    first, second = read([arguments.first, arguments.second], arguments.set, arguments.cluster)
    found = differences(first, second)
    if machine(arguments):
        show_json([asdict(difference) for difference in found])
    elif found:
        say(f"A  {arguments.first}\nB  {arguments.second}\n", *in_words(found), sep="\n")
    else:
        count = sum(map(len, first.parts.values()))
        say(f"the {count} facts about the two programs are the same")
    return FINDINGS if found else OK


def read(targets: Sequence[str], sizes: Sequence[str], cluster: str | None) -> list[Facts]:
    """The facts about targets, each read in a process of its own.

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
    return [_read(target, code, *said) for target, (said, code) in zip(targets, answers, strict=True)]


def _read(target: str, code: int, out: str, err: str) -> Facts:
    try:
        answer = json.loads(out)
    except ValueError:
        raise UsageError(f"reading '{target}' ended with exit code {code} and said\n\n{err.strip()}") from None
    if "failure" in answer:
        raise UsageError(answer["failure"])
    parts = {name: [Fact(*fact) for fact in facts] for name, facts in answer["parts"].items()}
    return Facts(parts, answer["summaries"])
