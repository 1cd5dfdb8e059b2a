"""Loaders: does a loader that loads a state continue with the batches that the run that saved it would have had?

A worked example: epochs of three batches, each in another order. The state holds the position, but not the epoch::

    the run      a b c | c a b          saved after batch c of the second epoch, at position 1
    resumed            |   b c          position 1 of the first epoch's order: b comes twice, a is lost
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from hfdsl.errors import DefinitionError
from hfdsl.testing.arguments import nothing, number_of, refused
from hfdsl.testing.compare import first_difference

__tracebackhide__ = True  # pytest shows the user's own lines


class StatefulLoader(Protocol):
    """A loader whose position a run saves and restores, as torchdata's ``StatefulDataLoader`` does."""

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch, or what is left of it."""
        ...

    def state_dict(self) -> Any:
        """The position after the last batch."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Continue at a position."""


class BrokenLoaderError(AssertionError):
    """A loader loses batches or repeats them if a run is saved and resumed."""


def check_loader(factory: Callable[[], StatefulLoader], *, batches: int) -> None:
    """Save a loader's state at every batch, load it into a new loader, and compare the batches that follow.

    ``factory`` returns a new loader each time, as a resumed run constructs it. ``batches`` is the length of the run:
    take more than an epoch, so that it covers the order of the next one. A loader that ends is iterated over again, as
    in a loop over epochs. States go through ``pickle``, as through a file.

    - A new loader that loads a state gives the batches that followed in the run that saved it, bit for bit, and its
      epochs end where they ended there.
    - A run that is saved and resumed after every batch gives the batches of a run without interruption.
    - Saving changes nothing: neither the batches that follow, nor a state that was saved before.
    - Loading does not change the state that it is given.

    A loader may differ from run to run, if its states hold all that it drew at random.

    Raises:
        BrokenLoaderError: with the first batch that differs, and where the state was saved.
        DefinitionError: HF921 for another argument, or a factory that returns one loader twice or anything else; HF922
            if the loader yields no batch.

    >>> class Loader:
    ...     def __init__(self) -> None:
    ...         self.position = 0
    ...     def __iter__(self):
    ...         while self.position < 4:
    ...             yield [self.position]
    ...             self.position += 1  # only when the next batch is asked for
    ...         self.position = 0
    ...     def state_dict(self) -> dict[str, int]:
    ...         return {"position": self.position}
    ...     def load_state_dict(self, state: dict[str, int]) -> None:
    ...         self.position = state["position"]
    >>> check_loader(Loader, batches=6)
    Traceback (most recent call last):
    hfdsl.testing.loaders.BrokenLoaderError: Loader, resumed from the state saved after batch 0: batch 0 of ...
    """
    number_of("check_loader", "batches=", batches, 2)
    new_loader = _checked(factory)
    loader = new_loader()
    name, run = type(loader).__name__, _read(loader, batches, saves=True)
    if not run.batches:
        raise nothing("check_loader", f"{name} yields no batch")
    for state in run.states:
        if change := state.change():
            raise BrokenLoaderError(f"{name}: {change} while the run continued: state_dict must return a copy")
    unsaved, repeated = (_read(new_loader(), batches).batches for _ in range(2))
    if not _fault(_Run(unsaved), repeated) and (fault := _fault(_Run(unsaved), run.batches)):
        raise BrokenLoaderError(f"{name}: state_dict changes what comes next: {fault}")
    for state in run.states:
        given, resumed = state.reloaded(), new_loader()
        resumed.load_state_dict(given.value)
        rest = _read(resumed, batches - state.position)
        subject = f"{name}, resumed from the state saved {state.place}"
        if fault := _fault(run, rest.batches, state.position) or _epoch_fault(run, rest, state.position):
            raise BrokenLoaderError(f"{subject}: {fault}")
        if change := given.change():
            raise BrokenLoaderError(f"{name}: {change} while a resumed run continued: load_state_dict must copy it")
    if fault := _fault(run, _resumed_after_each(new_loader, run)):
        raise BrokenLoaderError(f"{name}, saved and resumed after every batch: {fault}")


def _checked(factory: Callable[[], StatefulLoader]) -> Callable[[], StatefulLoader]:
    """The factory, or HF921 for what it returns."""
    takes = "a function that returns a new loader, with state_dict and load_state_dict"
    if not callable(factory):
        raise refused("check_loader", "factory", takes, factory)
    earlier: StatefulLoader | None = None

    def new_loader() -> StatefulLoader:
        nonlocal earlier
        loader = factory()
        missing = [name for name in ("__iter__", "state_dict", "load_state_dict") if not hasattr(loader, name)]
        if missing:
            returned = f"one that returns a {type(loader).__name__} without {missing[0]}"
            raise DefinitionError("HF921", f"check_loader: factory takes {takes}, got {returned}")
        if loader is earlier:
            raise DefinitionError("HF921", f"check_loader: factory takes {takes}, got one that returns the same again")
        earlier = loader
        return loader

    return new_loader


@dataclass(frozen=True, slots=True)
class _State:
    """A state after ``position`` batches: the object, and what was saved of it at that time."""

    value: Any
    position: int
    place: str
    saved: bytes

    def reloaded(self) -> _State:
        """The state as a resumed run reads it."""
        return _State(pickle.loads(self.saved), self.position, self.place, self.saved)

    def change(self) -> str:
        """How the object differs from what was saved of it; empty if it does not."""
        now = pickle.dumps(self.value)
        difference = None if now == self.saved else first_difference(pickle.loads(self.saved), pickle.loads(now))
        if difference is None:
            return ""
        part = f"{difference.column!r} of the state" if difference.column else "the state"
        return f"{part} saved {self.place} changed from {difference.expected} to {difference.actual}"


@dataclass(frozen=True, slots=True)
class _Run:
    """The batches of a run, how many of them came before each end of an epoch, and the states that it saved."""

    batches: Sequence[Any]
    ends: Sequence[int] = ()
    states: Sequence[_State] = ()


def _read(loader: StatefulLoader, count: int, *, saves: bool = False) -> _Run:
    """Read batches, epoch by epoch, up to a number of them or the second epoch without any."""
    batches, ends, states = list[Any](), list[int](), list[_State]()

    def save(place: str) -> None:
        if saves:
            states.append(_saved(loader, len(batches), place))

    save("before the first batch")
    while len(batches) < count and ends.count(len(batches)) < 2:
        for batch in islice(loader, count - len(batches)):
            batches.append(deepcopy(batch))  # a loader may reuse its memory
            save(f"after batch {len(batches) - 1}")
        if len(batches) < count:
            ends.append(len(batches))
            save(f"at the end of an epoch, after batch {len(batches) - 1}")
    return _Run(batches, ends, states)


def _saved(loader: StatefulLoader, position: int, place: str) -> _State:
    value = loader.state_dict()
    try:
        return _State(value, position, place, pickle.dumps(value))
    except Exception as error:  # noqa: BLE001  # pickle raises errors of many kinds
        problem = f"pickle cannot save the state {place}: {type(error).__name__}: {error}"
        raise BrokenLoaderError(f"{type(loader).__name__}: {problem}") from None


def _resumed_after_each(new_loader: Callable[[], StatefulLoader], run: _Run) -> Sequence[Any]:
    """The batches of a run that ends after each batch, and is resumed for the next one."""
    batches, state = list[Any](), run.states[0]
    while len(batches) < len(run.batches):
        loader = new_loader()
        loader.load_state_dict(state.reloaded().value)
        step = _read(loader, 1)
        batches += step.batches
        if not step.batches:
            break
        state = _saved(loader, len(batches), f"after batch {len(batches) - 1}")
    return batches


def _fault(run: _Run, batches: Sequence[Any], position: int = 0) -> str:
    """The first of these batches that is not the run's from a position on; empty if none differs."""
    for number, batch in enumerate(batches, position):
        if number == len(run.batches):
            return f"a batch {number} follows, where the run ended"
        if difference := first_difference(run.batches[number], batch):
            equal = [place for place, other in enumerate(run.batches) if not first_difference(other, batch)]
            if equal:
                nearest = min(equal, key=lambda place: abs(place - number))
                return f"batch {nearest} of the run comes in place of batch {number}"
            return f"batch {number} is not the run's: {difference.message}"
    if position + len(batches) < len(run.batches):
        return f"it ends before batch {position + len(batches)} of the run"
    return ""


def _epoch_fault(run: _Run, resumed: _Run, position: int) -> str:
    """The first epoch of a resumed run that does not end where the run's does; empty if all do.

    At the position itself, the resumed run may begin with an empty rest of an epoch, or with the next epoch.
    """
    ends = {end for end in run.ends if end > position}
    resumed_ends = {end + position for end in resumed.ends if end}
    for end in sorted(ends ^ resumed_ends):
        if end in resumed_ends:
            return f"an epoch ends before batch {end}, and the run's does not"
        return f"the run's epoch ends before batch {end}, and this one does not"
    return ""
