"""The call that a body is running in: which step, node, rank and rows; the source of every random stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hfdsl.errors import WiringError

if TYPE_CHECKING:
    import torch


class WeightLoads(Protocol):
    """The weights that arrive while a call runs."""

    def before(self, step: int, steps: int, beside: Sequence[tuple[WeightLoads, int]] = ()) -> int:
        """The version of the weights for decode step ``step`` of ``steps``; loads a new version if one has arrived.

        The step is one of the calls ``beside`` too, each of which has come to another one of its own.
        """
        ...

    def note(self, step: int, version: int) -> None:
        """Another call has loaded the version of the weights for a decode step."""


class Draws:
    """The number of draws of random numbers in a body so far.

    >>> draws = Draws()
    >>> draws.next(), draws.next()
    (0, 1)
    """

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        """The number of the next draw, from 0."""
        self.count += 1
        return self.count - 1


@dataclass(frozen=True, slots=True)
class Call:
    """A running call.

    ``first_row`` and ``row_count`` say which rows of the whole batch this rank has; where rows are balanced,
    ``balanced_rows`` lists them.

    ``version`` is that of the states that the dataflow trains: the number of batches that they were trained on when the
    call was dispatched. ``rows_version`` is the one under which its rows were made: behind a queue of lag k it is up to
    k less, and the difference is the rows' staleness. Without a queue both are the number of the step. Where a queue
    gives rows of several versions, ``row_versions`` lists them, and ``rows_version`` is the oldest.

    ``loads`` is set if weights may arrive during the call; see ``take_weights``.

    Streams are derived from what is written here, and from how many times the body has drawn before. So two draws of
    one body differ, and a step that is repeated draws the same values.
    """

    seed: int
    step: int
    node: int
    rank: int
    first_row: int = 0
    row_count: int | None = None
    dataflow: str = ""
    balanced_rows: tuple[int, ...] | None = None
    version: int = 0
    rows_version: int = 0
    row_versions: tuple[int, ...] | None = None
    loads: WeightLoads | None = field(default=None, repr=False, compare=False)
    # Two counts: ranks may differ in how many generators they ask for, and rows must not depend on their rank.
    _row_draws: Draws = field(default_factory=Draws, init=False, repr=False, compare=False)
    _rank_draws: Draws = field(default_factory=Draws, init=False, repr=False, compare=False)

    @property
    def rows(self) -> Sequence[int]:
        """The positions that this rank's rows have in the whole batch."""
        if self.balanced_rows is not None:
            return self.balanced_rows
        if self.row_count is None:
            raise WiringError("HF208", "this call takes no rows: none of its arguments is a record with a row dim")
        return range(self.first_row, self.first_row + self.row_count)

    def take_weights(self, step: int, of: int, beside: Sequence[tuple[Call, int]] = ()) -> int:
        """Load the weights that have arrived before decode step ``step`` of ``of``; return the version to sample with.

        Where several calls are in progress, the weights stay as they are until each of them has asked again or has
        ended. ``beside`` are calls whose rows are sampled in the same decode step, each with the number that it has
        for them; they do not ask themselves.

        Where ``hf.sync`` sends no weights during this method, nothing is loaded, and all tokens are of one version.

        >>> Call(seed=0, step=3, node=1, rank=0, version=2).take_weights(5, of=8)
        2
        """
        if self.loads is None:
            return self.version
        return self.loads.before(step, of, [(call.loads, at) for call, at in beside if call.loads is not None])

    def stream_seed(self, *parts: int) -> int:
        """A 63-bit seed derived from the run's seed, the dataflow, the step, the node and ``parts``."""
        text = ":".join(map(str, (self.seed, self.dataflow, self.step, self.node, *parts)))
        import hashlib  # not at the top: `import hfdsl` is kept fast

        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def generator(self, device: str = "cpu") -> torch.Generator:
        """A new random stream of this rank: other ranks draw other numbers, and so does the next generator."""
        import torch

        return torch.Generator(device).manual_seed(self.stream_seed(1, self.rank, *_later(self._rank_draws)))

    def row_seeds(self) -> list[int]:
        """A new 63-bit seed for every row of this rank, which does not depend on how the batch is split.

        >>> call = Call(seed=0, step=3, node=1, rank=0, row_count=2)
        >>> call.row_seeds() == call.row_seeds()
        False
        """
        later = _later(self._row_draws)
        return [self.stream_seed(0, row, *later) for row in self.rows]

    def uniforms(self, count: int) -> torch.Tensor:
        """``count`` new numbers in [0, 1) for every row of this rank, f32[rows, count].

        Each row has a stream of its own, so that the numbers of a row do not depend on how the batch is split. The
        second draw of a body differs from the first, so draw once for all rows, before they are cut into micro-batches.
        """
        import torch

        seeds, source = self.row_seeds(), torch.Generator()
        draw = torch.empty(len(seeds), count)
        for i, seed in enumerate(seeds):
            torch.rand(count, generator=source.manual_seed(seed), out=draw[i])
        return draw


def _later(draws: Draws) -> tuple[int, ...]:
    """The suffix of the next draw's seed: its number, and nothing for the first draw."""
    number = draws.next()
    return (number,) if number else ()


@contextmanager
def seeded(call: Call) -> Iterator[None]:
    """Within this, the global random streams (random, numpy, torch on the CPU) are derived from the call."""
    before = stream_states()
    seed_streams(call)
    try:
        yield
    finally:
        restore_streams(before)


def seed_streams(call: Call) -> None:
    """Derive the global random streams from the call, in a process where nothing else draws from them."""
    seed = call.stream_seed(2, call.rank)
    for _, _, start in _global_streams():
        start(seed)


def stream_states() -> list[Any]:
    """The states of the global random streams."""
    return [get() for get, _, _ in _global_streams()]


def restore_streams(states: list[Any]) -> None:
    """Set the global random streams to these states; one whose library was loaded since then keeps its own."""
    for (_, restore, _), state in zip(_global_streams(), states, strict=False):
        restore(state)


def _global_streams() -> list[tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]]:
    """(get state, set state, seed) of the global streams whose libraries are loaded."""
    import random  # not at the top: `import hfdsl` is kept fast

    streams: list[Any] = [(random.getstate, random.setstate, random.seed)]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        legacy = numpy.random
        streams.append((legacy.get_state, legacy.set_state, lambda seed: legacy.seed(seed % 2**32)))
    if torch is not None:
        streams.append((torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed))
    return streams


_current: ContextVar[Call | None] = ContextVar("hfdsl_call", default=None)


@contextmanager
def in_call(call: Call) -> Iterator[None]:
    """Within this, ``current_call()`` is ``call``."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def running_call() -> Call | None:
    """The call that the body is running in, if any."""
    return _current.get()


def current_call() -> Call:
    """The call that the body is running in.

    Raises:
        WiringError: HF208 if no dataflow is running.

    >>> with in_call(Call(seed=0, step=3, node=1, rank=0, first_row=4, row_count=2)):
    ...     list(current_call().rows)
    [4, 5]
    """
    call = _current.get()
    if call is None:
        raise WiringError("HF208", "current_call() is for the body of a role or function that a dataflow runs")
    return call
