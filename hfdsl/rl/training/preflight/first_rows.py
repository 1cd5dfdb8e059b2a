"""The first rows of a source, read if possible without the packages that a run needs for it."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from hfdsl.errors import DataError
from hfdsl.rl.data.hugging_face import METADATA, SAVED, SUFFIXES, hub_dataset, is_saved, matching
from hfdsl.rl.data.sources import Dataset, JsonLines, ReasoningGym, Source
from hfdsl.rl.hub import cached_snapshot
from hfdsl.rl.training.preflight.gym import dataset_names
from hfdsl.types.foreign_text import json_problem, parse_json, parse_object
from hfdsl.types.similar_names import closest, nearest

FIRST_ROWS = 16
LONGEST_LINE = 1 << 20
MOST_FILES = 64
"""The most files of a folder for which the fields of rows are read."""

ENTRY = ("question", "answer", "metadata")
"""The fields of every entry of reasoning-gym."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows of a source, each with its place, or only the names of their fields."""

    rows: Sequence[tuple[str, Mapping[str, Any]]] = ()
    fields: Sequence[str] = ()


def first_rows(source: Source) -> Sample:
    """Read the first rows of a source, or the names of their fields.

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
                raise _wrong("config", f"'{path}' has no configurations: only data sets on the hub have them")
            samples = [_dataset(file, split) for file in files or [Path(path)]]
            if len(samples) > 1:
                _refuse_unlike(files, samples)
            return samples[0]
        case ReasoningGym(name=name):
            names = dataset_names()
            if names and name not in names:
                candidate = nearest(name, sorted(names))
                raise _wrong(
                    "name", f"reasoning-gym has no data set '{name}'; {closest(name, sorted(names))}", candidate
                )
            return Sample(fields=ENTRY)


def _json_lines(path: Path) -> Sample:
    """The first objects of a file; a file without one cannot be read at all."""
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
                problems.append(f"{path}:{number}: not JSON: {json_problem(error)}")
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
        if not path.is_file():  # a pipe would block
            path.stat()
            raise _wrong("path", f"'{path}' is not a file")
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise _wrong("path", f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from None


LFS = b"version https://git-lfs"


COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\x03\x04": "zip"}
"""The first bytes of compressed files."""


def _refuse_stand_ins(path: Path, file: BinaryIO) -> None:
    """Refuse files that hold no plain rows: pointers of Git LFS, and compressed files."""
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
        raise _wrong("path", f"'{path}' is neither one of {', '.join(SUFFIXES)}, nor the folder of a data set")
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
    return Sample()  # files that only ``datasets`` can read


def _parquet(path: Path) -> Sample:
    """The first rows of a parquet file; none if no package can read them, which HF710 reports."""
    with path.open("rb") as file:
        text = file.read(4)
        if len(text) == 4:
            file.seek(-4, os.SEEK_END)
            text += file.read(4)
        if text != b"PAR1PAR1":
            raise _wrong("path", f"'{path}' is not a parquet file, or not a complete one")
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        return Sample()
    try:
        with parquet.ParquetFile(path) as file:
            fields = tuple(file.schema_arrow.names)
            batch = next(file.iter_batches(FIRST_ROWS), None)
            rows = [] if batch is None else batch.to_pylist()
    except Exception as error:  # noqa: BLE001  # the readers of pyarrow raise errors of many kinds
        raise _wrong("path", f"'{path}' cannot be read: {type(error).__name__}: {error}") from None
    if not rows:
        raise _wrong("path", f"'{path}' has no rows")
    return Sample([(f"{path}, row {index}", row) for index, row in enumerate(rows)], fields)


def _refuse_unlike(files: Sequence[Path], samples: Sequence[Sample]) -> None:
    """Refuse files of one data set with different fields."""
    for file, sample in zip(files, samples, strict=True):
        if sample.fields and samples[0].fields and set(sample.fields) != set(samples[0].fields):
            field = min(set(sample.fields) ^ set(samples[0].fields))
            raise _wrong("path", f"'{files[0]}' and '{file}' differ in field '{field}', but have to form one data set")


def _unsplit(folder: Path) -> Sample:
    """The fields of all files in a data set's folder, if they are the same, and so certainly those of its rows.

    ``datasets`` decides which files a split or a configuration has.
    """
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in SUFFIXES and file.name not in METADATA]
    samples: list[Sample] = []
    problems: list[DataError] = []
    for file in files if len(files) <= MOST_FILES else ():
        try:
            samples.append(_dataset(file, None))
        except DataError as error:
            problems.append(error)  # the file may be of a split that is not read
    if problems and not samples:
        raise problems[0]
    fields = {frozenset(sample.fields): sample.fields for sample in samples}
    return Sample(fields=next(iter(fields.values()))) if len(fields) == 1 else Sample()


def _saved(path: Path, split: str | None) -> Sample:
    """The rows of a folder of ``save_to_disk``, or of a copy of a data set on the hub."""
    if not any((path / name).is_file() for name in (*SAVED, "dataset_info.json")):
        return _unsplit(path)
    if (path / "dataset_dict.json").is_file():
        splits = _read_json(path / "dataset_dict.json").get("splits", [])
        if split not in splits:
            candidate = nearest(str(split), splits) if split else splits[0] if len(splits) == 1 else None
            raise _wrong("split", f"'{path}' has splits; set split= to one of {', '.join(map(str, splits))}", candidate)
        path = path / str(split)
    features = _read_json(path / "dataset_info.json").get("features")
    return Sample(fields=tuple(features)) if isinstance(features, dict) else Sample()


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        return parse_object(path.read_bytes())
    except (OSError, ValueError):
        return {}


class SourceError(DataError):
    """A source that cannot be read; ``near`` is the value that its field may mean."""

    near: str | None = None


def _wrong(field: str, message: str, near: str | None = None) -> DataError:
    error = SourceError("HF902", message)
    error.field, error.near = field, near
    return error
