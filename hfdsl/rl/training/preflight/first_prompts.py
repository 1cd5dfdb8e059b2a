"""The prompts and answers of a source's first rows, encoded as a run encodes them, without its packages.

Only the tokens of ``Characters`` are known from a configuration alone. A run takes rows in the order of its seed, so a
bad row ends it for certain only where it takes every row, or no row is known that is good.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hfdsl.check.findings import Finding
from hfdsl.errors import DataError
from hfdsl.rl.data.prompts import Encoder, formatted
from hfdsl.rl.data.tokenizers import Characters, CharacterTokenizer
from hfdsl.rl.training.feeds import SIZES
from hfdsl.rl.training.preflight.dataflows import size_of
from hfdsl.rl.training.preflight.first_rows import Sample
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField

TOO_LONG = re.compile(r"has (\d+) tokens, more than (\w+) = ")
"""The length in HF903, and the dim that it is more than."""

SKIP = 'data.on_bad = "skip" skips and counts such rows'


def bad_rows(
    subject: Subject, table: str, sample: Sample, responses: int, takes_all: Callable[[int], bool]
) -> Iterator[Finding]:
    """The first row that ends a run or its evaluation, although it has the fields of the prompt.

    ``takes_all`` says whether a run takes every row of its source with so many for each step.
    """
    data = subject.config.data
    sizes = {name: size_of(subject, table, name) for name in SIZES[responses]}
    lengths = {name: size for name, (_, size) in sizes.items() if size is not None}
    if data.on_bad != "raise" or not isinstance(data.tokenizer, Characters) or lengths.keys() < sizes.keys():
        return
    try:
        encoder = Encoder(
            data.prompt, CharacterTokenizer(data.tokenizer), lengths["P"], lengths.get("R"), pairs=responses == 2
        )
    except DataError:
        return  # of conversations, for which there is no template
    count = lengths["B"] // max(responses, 1)
    rows = sample.rows[:count] if table == "evaluation" else sample.rows
    problems = [problem for place, row in rows if (problem := _problem(encoder, row, place)) is not None]
    if problems and (table == "evaluation" or len(problems) == len(rows) or takes_all(count)):
        fields = {name: field for name, (field, _) in sizes.items()}
        yield _finding(subject, problems, fields, "evaluation.source" if table else "data.source", sample, responses)


def _problem(encoder: Encoder, row: Mapping[str, Any], place: str) -> DataError | None:
    try:
        encoder.encoded(dict(row), place)
    except DataError as error:
        return error
    return None


def _finding(
    subject: Subject, problems: list[DataError], sizes: Mapping[str, str], source: str, sample: Sample, responses: int
) -> Finding:
    """The finding about the first of the problems, at the field that decides it."""
    error, tokenizer = problems[0], subject.config.data.tokenizer
    if error.code == "HF903" and (match := TOO_LONG.search(error.message)):
        lengths = [int(other[1]) for problem in problems if (other := TOO_LONG.search(problem.message))]
        field, dim = sizes[match[2]], match[2]
        return subject.finding(
            "HF903",
            error.message,
            field,
            notes=(SKIP,),
            related={source: "the rows"},
            changes=(SetField(field, max(lengths)),),
            advice=f"set {dim} to {max(lengths)} or more",
        )
    lacking = _unknown(subject, tokenizer, sample, responses) if isinstance(tokenizer, Characters) else ""
    if lacking:
        notes = (f"the alphabet lacks {lacking!r}", SKIP)
        return subject.finding("HF902", error.message, "data.tokenizer", notes=notes, related={source: "the rows"})
    return subject.finding("HF902", error.message, source, notes=(SKIP,))


def _unknown(subject: Subject, tokenizer: Characters, sample: Sample, responses: int) -> str:
    """The characters of the first rows that the alphabet lacks."""
    prompt = subject.config.data.prompt
    templates = (prompt.text, prompt.answer, prompt.rejected)[: responses + 1]
    characters = dict[str, None]()
    for place, row in sample.rows:
        for template in templates:
            try:
                characters |= dict.fromkeys(formatted(template, dict(row), place))
            except DataError:
                continue
    known = set(tokenizer.alphabet)
    return "".join(character for character in characters if not known.issuperset(tokenizer.normalized(character)))
