"""The data of a run: its files, and the fields that prompts take from their first rows."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any, BinaryIO

from hfdsl.check.findings import Finding
from hfdsl.errors import DataError
from hfdsl.graph.program import Input
from hfdsl.rl.data.conversations import messages_of, tools_of
from hfdsl.rl.data.hugging_face import METADATA, SAVED, SUFFIXES, hub_dataset, is_saved, matching
from hfdsl.rl.data.prompts import Prompt, formatted
from hfdsl.rl.data.sources import Dataset, JsonLines, ReasoningGym, Row, Source
from hfdsl.rl.hub import cached_snapshot, download_command, is_offline
from hfdsl.rl.training.changes import SetField
from hfdsl.rl.training.feeds import RESPONSES
from hfdsl.rl.training.places import Places
from hfdsl.rl.training.preflight.gym import dataset_names
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.types.batches import closest, nearest
from hfdsl.types.foreign_text import parse_json, parse_object

FIRST_ROWS = 16
LONGEST_LINE = 1 << 20
MOST_FILES = 64
"""Of a folder with more files, the fields of rows are not read."""

ENTRY = ("question", "answer", "metadata")
"""The fields of every entry of reasoning-gym."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows of a source, each with its place; or only the names of their fields."""

    rows: Sequence[tuple[str, Mapping[str, Any]]] = ()
    fields: Sequence[str] = ()


def data_can_be_read(subject: Subject) -> Iterator[Finding]:
    """The files of data are there, and their first rows have the fields of the prompt."""
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
            f"an evaluation reads B = {rows} rows, and its source has {size}",
            "evaluation.source.size",
            related={field: f"B = {rows}"},
            changes=(SetField("evaluation.source.size", rows), SetField("evaluation.dims.B", size)),
        )


def _source(subject: Subject, field: str, source: Source, table: str) -> Iterator[Finding]:
    if isinstance(source, Dataset) and (named := _not_cached(subject, source.path)) is not None:
        yield _downloads(subject, field, *named)
        return
    try:
        sample = _sample(source)
    except DataError as error:
        changes, advice = _repairs(subject, field, source, error)
        yield subject.finding("HF902", error.message, f"{field}.{error.field}", changes=changes, advice=advice)
        return
    takes = [node.op.record for node in subject.graphs[table].inputs if isinstance(node.op, Input)]
    responses = RESPONSES.get(takes[0], 0) if len(takes) == 1 else 0
    for reader in _readers(subject.config.data.prompt, responses):
        problem = _unfit(reader, sample)
        if problem is not None:
            key = f"data.prompt.{reader.field}"
            changes = tuple(SetField(key, text) for text in _meant(reader, sample))
            yield subject.finding("HF902", problem, key, related={field: "the rows are these"}, changes=changes)
    if responses == 2:
        yield from _pairs(subject)


def _pairs(subject: Subject) -> Iterator[Finding]:
    """The responses of a pair are not the same text by configuration."""
    prompt = subject.config.data.prompt
    better, worse = ("answer", "rejected") if prompt.messages is None else ("messages", "rejected_messages")
    text = getattr(prompt, worse)
    if getattr(prompt, better) == text:
        yield subject.finding(
            "HF902",
            f"both responses of every pair are {text!r}: none is better, and nothing is learned",
            f"data.prompt.{worse}",
            related={f"data.prompt.{better}": "the better one"},
        )


@dataclass(frozen=True, slots=True)
class FieldReader:
    """What a field of the prompt reads of a row: the names of the row's fields, and a function that reads them."""

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


def _sample(source: Source) -> Sample:
    """The first rows.

    Raises:
        DataError: HF902 with the field of the source that is wrong.
    """
    match source:
        case JsonLines(path=path):
            return _json_lines(Path(path))
        case Dataset(path=path, split=split, config=config):
            named = hub_dataset(path)
            snapshot = cached_snapshot("dataset", *named) if named is not None else None
            if snapshot is not None:
                return _unsplit(snapshot)
            files = matching(path)
            if config is not None and files and all(file.is_file() or is_saved(file) for file in files):
                raise _wrong("config", f"'{path}' has no configurations: only data sets on the hub have")
            samples = [_dataset(file, split) for file in files or [Path(path)]]
            if len(samples) > 1:
                _refuse_unlike(files, samples)
            return samples[0]
        case ReasoningGym(name=name):
            names = dataset_names()
            if names and name not in names:
                near = nearest(name, sorted(names))
                raise _wrong("name", f"reasoning-gym has no data set '{name}'; {closest(name, sorted(names))}", near)
            return Sample(fields=ENTRY)


def _json_lines(path: Path) -> Sample:
    """The first objects of a file; a file in which no line is one cannot be read at all."""
    if path.is_dir():
        raise _wrong("path", f"'{path}' is a folder; 'JsonLines' reads a file with a JSON object on each line")
    rows: list[tuple[str, Mapping[str, Any]]] = []
    problems: list[str] = []
    with _opened(path) as file:
        _refuse_stand_ins(path, file)
        for number, line in islice(_lines(file), FIRST_ROWS):
            try:
                row = parse_json(line)
            except ValueError as error:  # of JSON or UTF-8
                problems.append(f"{path}:{number}: not JSON: {error}")
                continue
            if isinstance(row, dict):
                rows.append((f"{path}:{number}", row))
            else:
                problems.append(f"{path}:{number}: a row must be a JSON object, got {type(row).__name__}")
    if problems and not rows:
        raise _wrong("path", problems[0])
    if not rows:
        raise _wrong("path", f"'{path}' has no rows")
    return Sample(rows=rows)


def _opened(path: Path) -> BinaryIO:
    try:
        if not path.is_file():  # not a pipe, which would be waited for
            path.stat()
            raise _wrong("path", f"'{path}' is not a file")
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise _wrong("path", f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from None


LFS = b"version https://git-lfs"
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\x03\x04": "zip"}
"""How files begin that hold other files."""


def _refuse_stand_ins(path: Path, file: BinaryIO) -> None:
    """Files that hold no rows as they are: pointers of Git LFS, and compressed ones."""
    start = file.read(len(LFS))
    file.seek(0)
    if start == LFS:
        raise _wrong("path", f"'{path}' is a Git LFS pointer, not the rows themselves: git -C {path.parent} lfs pull")
    for magic, name in COMPRESSED.items():
        if start.startswith(magic):
            raise _wrong("path", f"'{path}' is compressed with {name}: decompress it, since a run reads it row by row")


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers, until one is longer than a row usually is."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            return
        if not line.isspace():
            yield number, line


def _dataset(path: Path, split: str | None) -> Sample:
    if not path.exists():
        raise _wrong("path", f"there is no '{path}'")
    if path.is_dir():
        return _saved(path, split)
    if path.suffix not in SUFFIXES:
        raise _wrong("path", f"'{path}' is none of {', '.join(SUFFIXES)}, and not a folder of a data set")
    with _opened(path) as binary:
        _refuse_stand_ins(path, binary)
    if not path.stat().st_size:
        raise _wrong("path", f"'{path}' is empty")
    match path.suffix:
        case ".csv":
            with path.open(newline="", encoding="utf-8-sig", errors="replace") as text:
                return Sample(fields=next(csv.reader(text), ()))
        case ".jsonl":
            return Sample(fields=list(dict.fromkeys(name for _, row in _json_lines(path).rows for name in row)))
        case ".parquet":
            return _parquet(path)
    return Sample()  # what other readers make of a file is not read here


def _parquet(path: Path) -> Sample:
    """The first rows of a parquet file; none where no package can read them, which is reported by itself (HF710)."""
    with path.open("rb") as file:
        text = file.read(4)
        if len(text) == 4:
            file.seek(-4, os.SEEK_END)
            text += file.read(4)
        if text != b"PAR1PAR1":
            raise _wrong("path", f"'{path}' is no parquet file, or not all of one")
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        return Sample()
    try:
        with parquet.ParquetFile(path) as file:
            fields = tuple(file.schema_arrow.names)
            first = next(file.iter_batches(FIRST_ROWS), None)
            rows = [] if first is None else first.to_pylist()
    except Exception as error:  # noqa: BLE001  # its readers raise errors of many kinds
        raise _wrong("path", f"'{path}' cannot be read: {type(error).__name__}: {error}") from None
    if not rows:
        raise _wrong("path", f"'{path}' has no rows")
    return Sample([(f"{path}, row {index}", row) for index, row in enumerate(rows)], fields)


def _refuse_unlike(files: Sequence[Path], samples: Sequence[Sample]) -> None:
    """Files that are read as one data set have the same fields."""
    for file, sample in zip(files, samples, strict=True):
        if sample.fields and samples[0].fields and set(sample.fields) != set(samples[0].fields):
            other = sorted(set(sample.fields) ^ set(samples[0].fields))
            raise _wrong("path", f"'{files[0]}' and '{file}' differ in field '{other[0]}', and are to be one data set")


def _not_cached(subject: Subject, path: str) -> tuple[str, str | None] | None:
    """The name and the revision of a data set on the hub that this machine's cache does not have."""
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
        return subject.finding("HF902", message, f"{field}.path", notes=(command,))
    message = f"the run downloads the data set '{name}' from the Hugging Face hub when it starts"
    return subject.finding("HF724", message, f"{field}.path", notes=(f"download it first: {command}",))


def _unsplit(folder: Path) -> Sample:
    """What the rows of a data set's folder are certain to have: the fields of all its files, if they are the same.

    Which files a split or a configuration has is left to ``datasets``.
    """
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in SUFFIXES and file.name not in METADATA]
    samples: list[Sample] = []
    problems: list[DataError] = []
    for file in files if len(files) <= MOST_FILES else ():
        try:
            samples.append(_dataset(file, None))
        except DataError as error:
            problems.append(error)  # one of a split that is not read, as far as is known
    if problems and not samples:
        raise problems[0]
    fields = {frozenset(sample.fields): sample.fields for sample in samples}
    return Sample(fields=next(iter(fields.values()))) if len(fields) == 1 else Sample()


def _saved(path: Path, split: str | None) -> Sample:
    """A folder of ``save_to_disk``, or a copy of a data set of the hub."""
    if not any((path / name).is_file() for name in (*SAVED, "dataset_info.json")):
        return _unsplit(path)
    if (path / "dataset_dict.json").is_file():
        splits = _read_json(path / "dataset_dict.json").get("splits", [])
        if split not in splits:
            near = nearest(str(split), splits) if split else splits[0] if len(splits) == 1 else None
            raise _wrong("split", f"'{path}' has splits; split= names one of {', '.join(map(str, splits))}", near)
        path = path / str(split)
    features = _read_json(path / "dataset_info.json").get("features")
    return Sample(fields=tuple(features)) if isinstance(features, dict) else Sample()


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        return parse_object(path.read_bytes())
    except (OSError, ValueError):
        return {}


def _unfit(reader: FieldReader, sample: Sample) -> str | None:
    """What is wrong with each of the first rows; None where one of them can be read, or none is known."""
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


def _meant(reader: FieldReader, sample: Sample) -> Iterator[str]:
    """The text of a field with a name of the rows' fields that is spelled alike."""
    known = list(sample.fields or dict.fromkeys(name for _, row in sample.rows for name in row))
    for name in reader.names:
        near = nearest(name, known)
        if name not in known and near is not None:
            yield near if reader.text == name else reader.text.replace(f"{{{name}", f"{{{near}")


def _repairs(subject: Subject, field: str, source: Source, error: DataError) -> tuple[tuple[SetField, ...], str]:
    """How a source that cannot be read may be mended: changes of its fields, and the same as advice."""
    if isinstance(error, _SourceError) and error.near is not None:
        return (SetField(f"{field}.{error.field}", error.near),), ""
    if isinstance(source, ReasoningGym):
        return (), ""
    path, reads = Path(source.path), ((SetField(f"{field}.kind", "Dataset"),), 'kind = "Dataset" reads it')
    if path.is_dir():
        saved = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
        files = sorted(path.glob("*.jsonl"))
        return reads if saved else renamed_path(f"{field}.path", files if len(files) == 1 else [])
    if path.is_file():
        other = isinstance(source, JsonLines) and path.suffix in SUFFIXES and path.stat().st_size
        return reads if other else ((), "")
    near = near_paths(subject, path)
    if isinstance(source, JsonLines) and not near and hub_dataset(source.path) is not None:
        return reads[0], 'kind = "Dataset" reads data sets on the Hugging Face hub'
    return renamed_path(f"{field}.path", near)


def renamed_path(field: str, paths: Sequence[Path]) -> tuple[tuple[SetField, ...], str]:
    """Changes of a field to one of these paths, and the first as advice."""
    return tuple(SetField(field, str(path)) for path in paths), f"did you mean '{paths[0]}'?" if paths else ""


def near_paths(subject: Subject, path: Path) -> list[Path]:
    """Where a path that is not there may be: beside the configuration, spelled alike, or in the current folder."""
    places = subject.loaded.places
    beside = Path(places.main.file).parent / path if isinstance(places, Places) else path
    if not path.is_absolute() and beside.exists() and beside != path:
        return [Path(os.path.relpath(beside))]
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, names)
    if near is not None:
        return [path.parent / near]
    return [Path(path.name)] if path.name != str(path) and Path(path.name).exists() else []


def beside_the_output(subject: Subject, path: Path) -> bool:
    """Whether a path begins like the folder that the run writes to: another run may write it."""
    output = Path(subject.config.output)
    return len(output.parts) > 1 and output.parts[0] == path.parts[0]


class _SourceError(DataError):
    """A source that cannot be read, by the field that says so; ``near`` is the value that may be meant."""

    near: str | None = None


def _wrong(field: str, message: str, near: str | None = None) -> DataError:
    error = _SourceError("HF902", message)
    error.field, error.near = field, near
    return error
