"""Data sets that Hugging Face's ``datasets`` reads: local files, folders, and names on the hub.

If the path is a name on the hub, the source depends on the cache and the network::

    HF_HUB_OFFLINE    the hub answers    reads
    not set           yes                the revision on the hub; files that the cache has are not sent again
    not set           no                 the snapshot in the hub's cache, if there is one
    1                                    the same
"""

from __future__ import annotations

from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import Any, Final

from hfdsl.errors import DataError
from hfdsl.rl.hub import cached_snapshot, download_command, hub_name, is_offline

SUFFIXES: Final = (".parquet", ".arrow", ".json", ".jsonl", ".csv")
"""The suffixes of the files that a ``Dataset`` reads."""

SAVED: Final = ("dataset_dict.json", "state.json")
"""The files that ``save_to_disk`` writes into a folder: the first for several splits, the second for a single one."""

METADATA: Final = (*SAVED, "dataset_info.json", "dataset_infos.json")
"""Files that describe the data set of a folder, without rows."""

ANSWER_SECONDS: Final = 30.0
"""The seconds without an answer after which the hub counts as out of reach."""


def matching(path: str) -> list[Path]:
    """The files that a pattern matches, in the order of their names, or the path itself if it exists.

    >>> matching("no such file")
    []
    """
    if Path(path).exists():
        return [Path(path)]
    if not any(mark in path for mark in "*?["):
        return []
    return sorted(map(Path, glob(path)))  # noqa: PTH207  # the pattern may be absolute


def hub_dataset(path: str) -> tuple[str, str | None] | None:
    """The name of a data set on the hub and its revision; None for files and folders, even missing ones.

    >>> hub_dataset("openai/gsm8k@main"), hub_dataset("rows/train.parquet")
    (('openai/gsm8k', 'main'), None)
    """
    return None if path.endswith(SUFFIXES) else hub_name(path)


def is_saved(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote the folder."""
    return any((folder / name).is_file() for name in SAVED)


def _refuse_configuration(path: str, config: str | None) -> None:
    """Refuse the name of a configuration for files that have none."""
    if config is not None:
        raise DataError("HF902", f"'{path}' has no configurations: only data sets on the hub have them")


def read(path: str, split: str | None, config: str | None) -> Any:
    """The entries of a data set, on disk until they are read.

    Raises:
        DataError: HF902 if they cannot be read, have no such split or configuration, or the package is missing.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]  # optional
    except ImportError:
        raise DataError("HF902", "Dataset needs the package datasets: pip install 'hfdsl[datasets]'") from None
    named = hub_dataset(path)
    try:
        entries = _of_hub(datasets, named, split, config) if named else _of_files(datasets, path, split, config)
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001  # the readers of ``datasets`` raise errors of many kinds
        text = " ".join(str(error).partition("\nExample of usage")[0].split())
        raise DataError("HF902", f"'{path}' cannot be read: {type(error).__name__}: {text}") from None
    if isinstance(entries, Mapping):
        if split not in entries:
            raise DataError("HF902", f"'{path}' has splits; set split= to one of {', '.join(map(str, entries))}")
        return entries[split]
    return entries


def _of_files(datasets: Any, path: str, split: str | None, config: str | None) -> Any:
    files = matching(path)
    first = files[0] if files else Path(path)
    if not first.exists():
        raise DataError("HF902", f"there is no '{path}'")
    if first.is_dir():
        if not is_saved(first):
            return datasets.load_dataset(path, config, split=split)
        _refuse_configuration(path, config)
        return datasets.load_from_disk(path)
    _refuse_configuration(path, config)
    if first.suffix not in SUFFIXES:
        raise DataError("HF902", f"'{path}' is neither one of {', '.join(SUFFIXES)}, nor the folder of a data set")
    if {file.suffix for file in files} > {first.suffix}:
        raise DataError("HF902", f"'{path}' matches files of several kinds")
    names = [str(file) for file in files]
    match first.suffix:
        case ".arrow":
            parts = [datasets.Dataset.from_file(name) for name in names]
            return parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
        case ".parquet":
            return datasets.Dataset.from_parquet(names)
        case ".csv":
            return datasets.Dataset.from_csv(names)
        case _:
            return datasets.Dataset.from_json(names)


def _of_hub(datasets: Any, named: tuple[str, str | None], split: str | None, config: str | None) -> Any:
    name, revision = named
    obstacle = "HF_HUB_OFFLINE keeps the run from the network" if is_offline() else _no_answer(name, revision)
    if obstacle is None:
        return datasets.load_dataset(name, config, split=split, revision=revision)
    snapshot = cached_snapshot("dataset", name, revision)
    if snapshot is not None:
        return datasets.load_dataset(str(snapshot), config, split=split)
    raise DataError(
        "HF902",
        f"{_quoted(name, revision)} is not in this machine's cache of the Hugging Face hub, and {obstacle}; "
        f"download it where there is a network: {download_command('dataset', name, revision)}",
    )


def _no_answer(name: str, revision: str | None) -> str | None:
    """Why the hub does not answer; None if it answers that it has the data set.

    Raises:
        DataError: HF902 if the hub answers that it has no such data set, or that this user may not read it.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(name, revision=revision, timeout=ANSWER_SECONDS)
    except Exception as error:  # noqa: BLE001  # the hub's client raises errors of many libraries
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if getattr(error, "response", None) is None:
            return f"the hub does not answer: {reason}"
        raise DataError(
            "HF902", f"the Hugging Face hub gives no data set {_quoted(name, revision)}: {reason}"
        ) from None
    return None


def _quoted(name: str, revision: str | None) -> str:
    return f"'{name}@{revision}'" if revision else f"'{name}'"
