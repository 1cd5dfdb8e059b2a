"""Sources of rows: ``reasoning-gym``, JSON lines, and data sets on Hugging Face."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

from hfdsl.errors import DataError
from hfdsl.rl.data.hugging_face import read
from hfdsl.rl.fields import Count, Seed, check_fields
from hfdsl.types.foreign_text import json_problem, parse_json
from hfdsl.types.similar_names import closest

Row: TypeAlias = dict[str, Any]


class Rows(Protocol):
    """Rows by index."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """A row; ``DataError`` (HF902) if it cannot be read."""
        ...

    def place(self, index: int) -> str:
        """The place of a row, for messages: a file and its line, or a data set and its entry."""
        ...


@dataclass(frozen=True, slots=True)
class ReasoningGym:
    """A data set of the package reasoning-gym, which generates entry i with the seed ``seed + i``."""

    name: str
    """The data set's name, such as ``"spell_backward"``."""

    size: Count
    """The number of entries, each generated when it is read; usually thousands."""

    seed: Seed = 0
    """The seed of the first entry. Two sources whose seeds differ by ``size`` or more share no entry's seed."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of the data set, such as ``min_word_len``."""

    def __post_init__(self) -> None:
        check_fields(self)

    def open(self) -> Rows:
        """The entries, each generated when it is read.

        Raises:
            DataError: HF902 if there is no such data set, it does not take the options, or the package is missing.
        """
        try:
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        except ImportError:
            raise DataError("HF902", "ReasoningGym needs the package reasoning-gym: pip install 'hfdsl[gym]'") from None
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
    """A file with a JSON object on each line; empty lines are skipped."""

    path: str
    """The file."""

    def open(self) -> Rows:
        """The rows, read from the file one by one.

        Raises:
            DataError: HF902 if there is no such file, or nothing in it.
        """
        return Lines(Path(self.path))


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set on the Hugging Face hub, or in local files: parquet, arrow, JSON, JSON lines or CSV, or a folder.

    Hugging Face's ``datasets`` reads it. Rows stay on disk until they are read, so files may be larger than memory.
    With ``HF_HUB_OFFLINE``, it reads only the hub's cache on this machine.
    """

    path: str
    """A name on the hub such as ``"openai/gsm8k@main"``, whose revision is optional; a file; a pattern of files of one
    kind, such as ``"data/train-*.parquet"``, in the order of their names; or a folder: one that ``save_to_disk`` wrote,
    or a copy of a data set on the hub."""

    split: str | None = None
    """The split of a data set that has several, such as ``"train"``."""

    config: str | None = None
    """The configuration of a data set on the hub that has several, such as ``"main"``."""

    def open(self) -> Rows:
        """The rows, on disk until they are read.

        Raises:
            DataError: HF902 if they cannot be read, or the package is missing.
        """
        entries = read(self.path, self.split, self.config)
        return Indexed(entries, len(entries), f"{self.path}, row")


Source: TypeAlias = ReasoningGym | JsonLines | Dataset


@dataclass(frozen=True, slots=True)
class Indexed:
    """The rows of a container with integer indices."""

    entries: Any
    size: int
    label: str
    """The name of an entry in messages, before its index."""

    def __len__(self) -> int:
        return self.size

    def row(self, index: int) -> Row:
        """A row."""
        try:
            return dict(self.entries[index])
        except Exception as error:  # noqa: BLE001  # a generator of entries may raise anything
            raise DataError("HF902", f"{self.place(index)}: {type(error).__name__}: {error}") from None

    def place(self, index: int) -> str:
        """The container and the index."""
        return f"{self.label} {index}"


MAX_LINE_BYTES = 64 * 2**20
"""The most bytes of a row; a longer line is a bad row."""


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


class Lines:
    """The lines of a file of any size: their offsets are read once, and their rows one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts, self._line_numbers = array("Q"), array("Q")
        try:
            if not path.is_file():  # the rows of a pipe or a device cannot be read in any order
                path.stat()
                raise DataError("HF902", f"'{path}' cannot be read: it is not a file")
            with path.open("rb") as file:
                self._index(file)
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError("HF902", f"'{path}' cannot be read: {_reason(error)}") from None
        if not self._starts:
            raise DataError("HF902", f"'{path}' has no rows")

    def _index(self, file: BinaryIO) -> None:
        start, line_number, is_new = 0, 1, True
        while part := file.readline(MAX_LINE_BYTES):  # a whole line could be the whole file
            if is_new and not part.isspace():
                self._starts.append(start)
                self._line_numbers.append(line_number)
            start += len(part)
            is_new = part.endswith(b"\n")
            line_number += is_new

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, index: int) -> Row:
        """The object of a line."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._starts[index])
                text = file.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise DataError("HF902", f"{self.place(index)} cannot be read: {_reason(error)}") from None
        if len(text) > MAX_LINE_BYTES:
            raise DataError("HF902", f"{self.place(index)}: the line has more than {MAX_LINE_BYTES // 2**20} MiB")
        try:
            row = parse_json(text)
        except ValueError as error:  # of JSON or UTF-8
            raise DataError("HF902", f"{self.place(index)}: not JSON: {json_problem(error)}") from None
        if not isinstance(row, dict):
            raise DataError("HF902", f"{self.place(index)}: a row must be a JSON object, got {type(row).__name__}")
        return row

    def place(self, index: int) -> str:
        """The file and the line."""
        return f"{self._path}:{self._line_numbers[index]}"
