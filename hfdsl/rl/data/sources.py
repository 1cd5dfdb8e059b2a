"""Where rows come from: ``reasoning-gym``, JSON lines, and data sets of Hugging Face in local files."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

from hfdsl.errors import DataError
from hfdsl.types.batches import closest

Row: TypeAlias = dict[str, Any]


class Rows(Protocol):
    """Rows by number. ``place`` says for people where one stands."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """A row; ``DataError`` (HF902) where it cannot be read."""
        ...

    def place(self, index: int) -> str:
        """Where a row stands: a file and its line, or a data set and its entry."""
        ...


@dataclass(frozen=True, slots=True)
class ReasoningGym:
    """A data set of the package reasoning-gym, which draws entry i from ``seed + i``.

    Two sources are disjoint in their seeds where they are further apart than ``size``. ``options`` are those of the
    data set, such as ``min_word_len``.
    """

    name: str
    size: int
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def open(self) -> Rows:
        """The entries, made when they are read.

        Raises:
            DataError: HF902 where there is no such data set, it does not take the options, or the package is missing.
        """
        try:
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        except ImportError:
            raise DataError("HF902", "ReasoningGym needs the package: pip install 'hfdsl[rl]'") from None
        if self.name not in DATASETS:
            raise DataError(
                "HF902", f"reasoning-gym has no data set '{self.name}'; {closest(self.name, sorted(DATASETS))}"
            )
        try:
            entries = reasoning_gym.create_dataset(self.name, seed=self.seed, size=self.size, **self.options)
        except (TypeError, ValueError, AssertionError) as error:
            raise DataError("HF902", f"reasoning-gym's '{self.name}' does not take {self.options}: {error}") from None
        return Indexed(entries, self.size, f"reasoning-gym '{self.name}', entry")


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A file with a JSON object a line; empty lines are passed over."""

    path: str

    def open(self) -> Rows:
        """The rows, read when they are asked for.

        Raises:
            DataError: HF902 where there is no such file, or nothing in it.
        """
        return Lines(Path(self.path))


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set in local files: parquet, arrow, JSON, JSON lines or CSV, or a folder that ``save_to_disk`` made.

    It is read by Hugging Face's ``datasets``; ``split`` is which part of a folder with several is meant.
    """

    path: str
    split: str | None = None

    def open(self) -> Rows:
        """The rows, on disk until they are read.

        Raises:
            DataError: HF902 where they cannot be read, or the package is missing.
        """
        try:
            import datasets  # pyright: ignore[reportMissingImports]  # optional
        except ImportError:
            raise DataError("HF902", "Dataset needs the package datasets: pip install 'hfdsl[datasets]'") from None
        path = Path(self.path)
        readers = {
            ".parquet": datasets.Dataset.from_parquet,
            ".arrow": datasets.Dataset.from_file,
            ".json": datasets.Dataset.from_json,
            ".jsonl": datasets.Dataset.from_json,
            ".csv": datasets.Dataset.from_csv,
        }
        if not path.exists():
            raise DataError("HF902", f"there is no '{self.path}'")
        if not path.is_dir() and path.suffix not in readers:
            raise DataError("HF902", f"'{self.path}' is none of {', '.join(readers)}, and no folder of a data set")
        try:
            found = datasets.load_from_disk(self.path) if path.is_dir() else readers[path.suffix](str(path))
        except Exception as error:  # noqa: BLE001  # each of its readers has errors of its own
            raise DataError("HF902", f"'{self.path}' cannot be read: {type(error).__name__}: {error}") from None
        if isinstance(found, Mapping):
            if self.split not in found:
                raise DataError("HF902", f"'{self.path}' has splits; split= names one of {', '.join(map(str, found))}")
            found = found[self.split]
        return Indexed(found, len(found), f"{self.path}, row")


Source: TypeAlias = ReasoningGym | JsonLines | Dataset


@dataclass(frozen=True, slots=True)
class Indexed:
    """Rows of something that has them by index."""

    entries: Any
    size: int
    what: str

    def __len__(self) -> int:
        return self.size

    def row(self, index: int) -> Row:
        """A row."""
        try:
            return dict(self.entries[index])
        except Exception as error:  # noqa: BLE001  # a generator of problems may raise anything
            raise DataError("HF902", f"{self.place(index)}: {type(error).__name__}: {error}") from None

    def place(self, index: int) -> str:
        """Its number."""
        return f"{self.what} {index}"


class Lines:
    """The lines of a file, found once and read one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts, self._numbers = array("Q"), array("Q")
        try:
            with path.open("rb") as file:
                self._find(file)
        except OSError as error:
            raise DataError("HF902", f"'{path}' cannot be read: {error.strerror}") from None
        if not self._starts:
            raise DataError("HF902", f"'{path}' has no rows")

    def _find(self, file: BinaryIO) -> None:
        start = 0
        for number, line in enumerate(file, 1):
            if not line.isspace():
                self._starts.append(start)
                self._numbers.append(number)
            start += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, index: int) -> Row:
        """The object of a line."""
        with self._path.open("rb") as file:
            file.seek(self._starts[index])
            text = file.readline()
        try:
            found = json.loads(text)
        except ValueError as error:  # of JSON or UTF-8
            raise DataError("HF902", f"{self.place(index)}: no JSON: {error}") from None
        if not isinstance(found, dict):
            raise DataError("HF902", f"{self.place(index)}: a row is a JSON object, got {type(found).__name__}")
        return found

    def place(self, index: int) -> str:
        """The file and the line."""
        return f"{self._path}:{self._numbers[index]}"
