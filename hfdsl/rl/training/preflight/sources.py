"""The data of a run: its files, and the fields that prompts take from their first rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Formatter

from hfdsl.check.findings import Finding
from hfdsl.errors import DataError
from hfdsl.rl.data.conversations import messages_of, tools_of
from hfdsl.rl.data.hugging_face import SUFFIXES, hub_dataset
from hfdsl.rl.data.prompts import Prompt, formatted
from hfdsl.rl.data.sources import Dataset, JsonLines, ReasoningGym, Row, Source
from hfdsl.rl.hub import cached_snapshot, download_command, is_offline
from hfdsl.rl.training.feeds import responses_of
from hfdsl.rl.training.places import Places
from hfdsl.rl.training.preflight.dataflows import size_of
from hfdsl.rl.training.preflight.first_prompts import bad_rows
from hfdsl.rl.training.preflight.first_rows import Sample, SourceError, first_rows
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.types.similar_names import closest, nearest


def data_can_be_read(subject: Subject) -> Iterator[Finding]:
    """The data's files exist, their first rows have the fields of the prompt, and there are enough for a step."""
    yield from _source(subject, "data.source", subject.config.data.source, "")
    if subject.config.evaluation is not None and "evaluation" in subject.graphs:
        yield from _source(subject, "evaluation.source", subject.config.evaluation.source, "evaluation")


def evaluations_have_rows(subject: Subject) -> Iterator[Finding]:
    """The source of an evaluation has a row for each of its prompts."""
    evaluation = subject.config.evaluation
    if evaluation is None or not isinstance(evaluation.source, ReasoningGym):
        return
    field, rows = "evaluation.dims.B", evaluation.dims.get("B")
    if rows is None:
        field, rows = "dims.B", subject.config.dims.get("B")
    size = evaluation.source.size
    if rows is not None and size < rows:
        yield subject.finding(
            "HF902",
            f"an evaluation reads B = {rows} rows, but its source has only {size}",
            "evaluation.source.size",
            related={field: f"B = {rows}"},
            changes=(SetField("evaluation.source.size", rows), SetField("evaluation.dims.B", size)),
        )


def prompts_differ(subject: Subject) -> Iterator[Finding]:
    """The template of the prompt names a field of a row."""
    prompt = subject.config.data.prompt
    if prompt.messages is None and not any(_names(prompt.text)):
        yield subject.finding(
            "HF726",
            f"the template {prompt.text!r} names no field of a row, so every prompt is this text",
            "data.prompt.text",
            notes=("name the field that has the question, as {question} does",),
        )


def _source(subject: Subject, field: str, source: Source, table: str) -> Iterator[Finding]:
    if isinstance(source, Dataset) and (named := _not_cached(subject, source.path)) is not None:
        yield _downloads(subject, field, *named)
        return
    try:
        sample = first_rows(source)
    except DataError as error:
        changes, advice = _repairs(subject, field, source, error)
        yield subject.finding("HF902", error.message, f"{field}.{error.field}", changes=changes, advice=advice)
        return
    responses = responses_of(subject.graphs[table]) or 0
    readers = list(_readers(subject.config.data.prompt, responses))
    unfit = {reader.field: _unfit(reader, sample) for reader in readers}
    for reader in readers:
        problem = unfit[reader.field]
        if problem is not None:
            key = f"data.prompt.{reader.field}"
            changes = tuple(SetField(key, text) for text in _misspellings(reader, sample))
            yield subject.finding("HF902", problem, key, related={field: "the rows are these"}, changes=changes)
    if responses == 2:
        yield from _pairs(subject)
    if not any(unfit.values()):
        yield from bad_rows(subject, table, sample, responses, lambda count: _takes_all(subject, source, count))
    yield from _prompts(subject, source) if field == "data.source" else _evaluated_rows(subject, source, responses)


def _evaluated_rows(subject: Subject, source: Source, responses: int) -> Iterator[Finding]:
    """A file has a row for each prompt or pair of an evaluation; ``evaluations_have_rows`` knows of generated ones."""
    field, rows = size_of(subject, "evaluation", "B")
    per_row = max(responses, 1)
    size = None if rows is None or isinstance(source, ReasoningGym) else _size(source, rows // per_row)
    if rows is None or size is None or size >= rows // per_row:
        return
    yield subject.finding(
        "HF902",
        f"an evaluation reads B = {rows} rows, but its source has only {size * per_row}",
        "evaluation.source",
        related={field: f"B = {rows}"},
        changes=(SetField("evaluation.dims.B", size * per_row),),
        advice=f"set evaluation.dims.B to at most {size * per_row}, or add data",
    )


def _prompts(subject: Subject, source: Source) -> Iterator[Finding]:
    """A source has as many prompts as a step takes; with fewer, a step trains on some of them several times."""
    rows = subject.config.dims.get("B")
    size = None if rows is None else _size(source, rows)
    if rows is None or size is None or size >= rows:
        return
    yield subject.finding(
        "HF361",
        f"a step takes B = {rows} prompts, and the source has {size}: a step repeats some of them",
        "data.source",
        related={"dims.B": f"B = {rows}"},
        changes=(SetField("dims.B", size),),
        advice=f"set B to at most {size}, or add data",
    )


def _takes_all(subject: Subject, source: Source, count: int) -> bool:
    """Whether the steps of a run with ``count`` rows each take every row of a file; False if it is large."""
    if not isinstance(source, JsonLines) or Path(source.path).stat().st_size > QUICKLY_READ:
        return False
    rows = subject.config.steps * count
    return (_size(source, min(rows, QUICKLY_READ) + 1) or 0) <= rows


QUICKLY_READ = 1 << 22
"""The bytes of a file whose lines are counted in milliseconds."""


def _size(source: Source, most: int) -> int | None:
    """The number of rows of a source, up to ``most``; None where counting takes more than reading lines."""
    if isinstance(source, ReasoningGym):
        return source.size
    if not isinstance(source, JsonLines):
        return None
    with Path(source.path).open("rb") as lines:
        return sum(1 for _ in islice(filter(bytes.strip, lines), most))


def _pairs(subject: Subject) -> Iterator[Finding]:
    """The two responses of a pair come from different fields."""
    prompt = subject.config.data.prompt
    better, worse = ("answer", "rejected") if prompt.messages is None else ("messages", "rejected_messages")
    text = getattr(prompt, worse)
    if getattr(prompt, better) == text:
        yield subject.finding(
            "HF902",
            f"both responses of every pair are {text!r}: neither is better, and nothing is learned",
            f"data.prompt.{worse}",
            related={f"data.prompt.{better}": "the better one"},
        )


@dataclass(frozen=True, slots=True)
class FieldReader:
    """A field of the prompt with its text: the names of the row's fields that it reads, and the reading function."""

    field: str
    text: str
    names: Sequence[str]
    read: Callable[[Row, str], object]


def _readers(prompt: Prompt, responses: int) -> Iterator[FieldReader]:
    if prompt.messages is not None:
        yield _conversation("messages", prompt.messages)
        if responses == 2:
            yield _conversation("rejected_messages", prompt.rejected_messages)
    else:
        yield _template("text", prompt.text)
        if responses:
            yield _template("answer", prompt.answer)
        if responses == 2:
            yield _template("rejected", prompt.rejected)
    if isinstance(prompt.tools, str):
        yield FieldReader("tools", prompt.tools, [prompt.tools], lambda row, place: tools_of(row, prompt.tools, place))


def _conversation(field: str, name: str) -> FieldReader:
    return FieldReader(field, name, [name], lambda row, place: messages_of(row, name, place))


def _template(field: str, template: str) -> FieldReader:
    return FieldReader(field, template, list(_names(template)), lambda row, place: formatted(template, row, place))


def _not_cached(subject: Subject, path: str) -> tuple[str, str | None] | None:
    """The name and the revision of a data set on the hub that this machine's cache lacks."""
    named = hub_dataset(path)
    if named is None or near_paths(subject, Path(path)) or beside_the_output(subject, Path(path)):
        return None
    return named if cached_snapshot("dataset", *named) is None else None


def _downloads(subject: Subject, field: str, name: str, revision: str | None) -> Finding:
    """A data set on the hub that the run has to download, or cannot."""
    command = download_command("dataset", name, revision)
    if is_offline():
        message = (
            f"this machine's cache of the Hugging Face hub has no data set '{name}', and HF_HUB_OFFLINE keeps the run "
            "from the network"
        )
        return subject.finding(
            "HF902", message, f"{field}.path", notes=(f"download it where there is a network: {command}",)
        )
    message = f"the run downloads the data set '{name}' from the Hugging Face hub when it starts"
    return subject.finding("HF724", message, f"{field}.path", notes=(f"download it first: {command}",))


def _unfit(reader: FieldReader, sample: Sample) -> str | None:
    """The problem of the first rows; None if one of them can be read, or no row is known."""
    problems: list[str] = []
    for place, row in sample.rows:
        try:
            reader.read(dict(row), place)
        except DataError as error:
            problems.append(error.message)
        else:
            return None
    if problems:
        return problems[0]
    for name in reader.names if sample.fields else ():
        if name not in sample.fields:
            return f"the rows have no field '{name}'; {closest(name, list(sample.fields))}"
    return None


def _names(template: str) -> Iterator[str]:
    """The fields of a row that a template reads."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        return
    yield from ((name or "").partition("[")[0].partition(".")[0] for _, name, _, _ in parts if name)


def _misspellings(reader: FieldReader, sample: Sample) -> Iterator[str]:
    """The text of a field with similarly spelled names from the rows' fields."""
    field_names = list(sample.fields or dict.fromkeys(name for _, row in sample.rows for name in row))
    for name in reader.names:
        candidate = nearest(name, field_names)
        if name not in field_names and candidate is not None:
            yield candidate if reader.text == name else reader.text.replace(f"{{{name}", f"{{{candidate}")


def _repairs(subject: Subject, field: str, source: Source, error: DataError) -> tuple[tuple[SetField, ...], str]:
    """The changes of its fields that may repair an unreadable source, and the same as advice."""
    if isinstance(error, SourceError) and error.near is not None:
        return (SetField(f"{field}.{error.field}", error.near),), ""
    if isinstance(source, ReasoningGym):
        return (), ""
    path, reads = Path(source.path), ((SetField(f"{field}.kind", "Dataset"),), 'kind = "Dataset" reads it')
    if path.is_dir():
        saved = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
        files = sorted(path.glob("*.jsonl"))
        return reads if saved else renamed_path(f"{field}.path", files if len(files) == 1 else [])
    if path.is_file():
        # Another reader of JSON lines would fail at the same line.
        is_other = isinstance(source, JsonLines) and path.suffix in SUFFIXES and path.suffix != ".jsonl"
        return reads if is_other and path.stat().st_size else ((), "")
    paths = near_paths(subject, path)
    if isinstance(source, JsonLines) and not paths and hub_dataset(source.path) is not None:
        return reads[0], 'kind = "Dataset" reads data sets on the Hugging Face hub'
    return renamed_path(f"{field}.path", paths)


def renamed_path(field: str, paths: Sequence[Path]) -> tuple[tuple[SetField, ...], str]:
    """Changes of a field to one of these paths, and the first as advice."""
    return tuple(SetField(field, str(path)) for path in paths), f"did you mean '{paths[0]}'?" if paths else ""


def near_paths(subject: Subject, path: Path) -> list[Path]:
    """Candidates for a missing path: beside the configuration, of similar spelling, or in the current folder."""
    places = subject.loaded.places
    beside = Path(places.main.file).parent / path if isinstance(places, Places) else path
    if not path.is_absolute() and beside.exists() and beside != path:
        return [Path(os.path.relpath(beside))]
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    candidate = nearest(path.name, names)
    if candidate is not None:
        return [path.parent / candidate]
    return [Path(path.name)] if path.name != str(path) and Path(path.name).exists() else []


def beside_the_output(subject: Subject, path: Path) -> bool:
    """Whether a path begins like the run's output folder, so that another run may write it."""
    output = Path(subject.config.output)
    return len(output.parts) > 1 and output.parts[0] == path.parts[0]
