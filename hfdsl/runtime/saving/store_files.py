"""One process's data of steps in progress, as a file of tensors and plain values; see ``queue_files``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.runtime.rank.store import PayloadContent, Store, StoredValue
from hfdsl.runtime.saving.state_files import FlatState, flatten_state, read_file, unflatten_state, write
from hfdsl.types.ragged import Jagged


def write_stores(
    folder: str, group: str, plan: str, steps: Mapping[int, tuple[Store, Sequence[PayloadContent]]]
) -> dict[str, str]:
    """Write a process's data of steps, and the payloads that it still receives.

    Raises:
        CheckpointError: HF906 if the file cannot be written, HF908 if a queue holds what no file can.
    """
    return write(folder, f"{group.strip('<>')}.queue", flat_stores(plan, steps))


def flat_stores(plan: str, steps: Mapping[int, tuple[Store, Sequence[PayloadContent]]]) -> FlatState:
    """A copy of a process's data of steps, and of payloads to come; HF908 for queued objects that no file can hold."""
    contents: list[Any] = [
        [number, _local(store), [*_received(store), *_entries(payloads)]] for number, (store, payloads) in steps.items()
    ]
    subject = f"a queue of '{plan}'"
    try:
        return flatten_state(contents, subject, copies=True)
    except CheckpointError:
        for _, local, received in contents:
            columns = [column for *_, of_value in local for column in of_value]
            for name, (_, *values) in [*columns, *((name, value) for _, _, name, _, value in received)]:
                flatten_state(values[-1], f"column '{name}' in {subject}")  # which raises for the column in question
        raise


def _local(store: Store) -> list[Any]:
    return [
        [node, chunk, value.producer, [[name, _plain(column)] for name, column in value.columns.items()]]
        for node, chunk, value in store.own_values()
    ]


def _received(store: Store) -> list[Any]:
    return [[node, chunk, column, rows, _plain(value)] for node, chunk, column, rows, value in store.received_values()]


def _entries(payloads: Sequence[PayloadContent]) -> list[Any]:
    return [
        [key.node, key.chunk, key.column, key.rows, _plain(value)]
        for content in payloads
        for key, value in content.items()
    ]


def _plain(value: Any) -> Any:
    """A raw column in a form that a file can hold: its kind, its values, and whether they were on a GPU."""
    if isinstance(value, Jagged):
        return ["ragged", _is_cuda(value.values), value.values, value.offsets]
    if hasattr(value, "untyped_storage"):
        return ["tensor", _is_cuda(value), value]
    return ["objects", value]


def _is_cuda(tensor: Any) -> bool:
    return bool(tensor.is_cuda)


def read_stores(folder: str, file: Mapping[str, str], new_store: Callable[[int], Store]) -> None:
    """Read the data of ``write_stores`` into new stores.

    Raises:
        CheckpointError: HF906 if the file is not what was written.
    """
    path = Path(folder) / file["file"]
    state = read_file(path)
    if state.digest() != file["sha256"]:
        raise CheckpointError("HF906", f"{path} is damaged: it does not have the written contents")
    try:
        fill_stores(state, new_store)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError("HF906", f"{path} cannot be read: {type(error).__name__}: {error}") from None


def read_payloads(
    folder: str, file: Mapping[str, str], wanted: Iterable[tuple[int, Sequence[Sequence[ColumnSlice]]]]
) -> list[PayloadContent]:
    """The payloads of these steps that ``write_stores`` wrote: for each step their slices.

    Raises:
        CheckpointError: HF906 if the file is not what was written.
    """
    stores: dict[int, Store] = {}
    read_stores(folder, file, lambda number: stores.setdefault(number, Store()))
    contents = {number: content_of(store) for number, store in stores.items()}
    try:
        return [{part: contents[number][part] for part in slices} for number, parts in wanted for slices in parts]
    except KeyError as error:
        raise CheckpointError("HF906", f"{Path(folder) / file['file']} lacks rows of a queue: {error}") from None


def content_of(store: Store) -> PayloadContent:
    """The payloads in a store, as one."""
    return {ColumnSlice(node, chunk, name, rows): value for node, chunk, name, rows, value in store.received_values()}


def fill_stores(state: FlatState, new_store: Callable[[int], Store]) -> None:
    """Put the data of ``flat_stores`` into new stores."""
    for number, local, received in unflatten_state(state):
        store = new_store(number)
        for node, chunk, producer, columns in local:
            store.put(node, chunk, StoredValue.of(producer, {name: _value(column) for name, column in columns}))
        store.receive(
            {ColumnSlice(node, chunk, name, rows): _value(value) for node, chunk, name, rows, value in received}
        )


def _value(entry: Any) -> Any:
    match entry:
        case ["ragged", on_gpu, values, offsets]:
            return Jagged(_on_device(values, on_gpu), offsets)
        case ["tensor", on_gpu, values]:
            return _on_device(values, on_gpu)
        case ["objects", values]:
            return values
    raise ValueError("an entry is not a column")


def _on_device(tensor: Any, on_gpu: bool) -> Any:
    import torch

    return tensor.cuda() if on_gpu and torch.cuda.is_available() else tensor
