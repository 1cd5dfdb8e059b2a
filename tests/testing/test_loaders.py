"""The law of loaders: those that lose no batch pass, in whatever way they keep their position, and all others fail."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DefinitionError
from hfdsl.rl.data.feed import Feed, Prefetcher
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.data.prompts import Encoder, Prompt
from hfdsl.rl.data.sources import JsonLines
from hfdsl.rl.data.tokenizers import Characters, load_tokenizer
from hfdsl.testing import BrokenLoaderError, check_loader

BATCHES = 4
"""The batches of an epoch."""

LENGTH = 10
"""The batches of a run: two epochs, and half of a third."""


class Epochs:
    """Epochs of the same batches, each shuffled with the seed and its number."""

    seed = 0

    def __init__(self) -> None:
        self.epoch, self.position = 0, 0

    def order(self) -> Sequence[int]:
        return random.Random(f"{self.seed} {self.epoch}").sample(range(BATCHES), BATCHES)

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        while self.position < BATCHES:
            self.position += 1
            yield self.batch(order[self.position - 1])
        self.epoch, self.position = self.epoch + 1, 0

    def batch(self, number: int) -> Any:
        return number

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Records(Epochs):
    """The arguments of a step with two inputs."""

    def batch(self, number: int) -> Any:
        rows = Rows(x=torch.full((2,), float(number)))
        return rows, rows


class OneBuffer(Epochs):
    """Writes every batch into the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(2)

    def batch(self, number: int) -> Any:
        return self.buffer.fill_(number)


class SkipsTheEnd(Epochs):
    """Begins the next epoch at once, if it is resumed after the last batch of one."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.position == BATCHES:
            self.epoch, self.position = self.epoch + 1, 0


class Unseeded(Epochs):
    """Another order in every run, all of which its state holds."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random()
        self.shuffled: list[int] = []

    def order(self) -> Sequence[int]:
        if not self.position:
            self.shuffled = self.random.sample(range(BATCHES), BATCHES)
        return self.shuffled

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "random": self.random.getstate(), "shuffled": list(self.shuffled)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.random.setstate(state["random"])
        self.shuffled = list(state["shuffled"])


class Once:
    """Its own iterator, which ends for good."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.position == BATCHES:
            raise StopIteration
        self.position += 1
        return self.position

    def state_dict(self) -> int:
        return self.position

    def load_state_dict(self, state: int) -> None:
        self.position = state


class Endless(Once):
    def __next__(self) -> int:
        self.position += 1
        return self.position


class Prefetching(Epochs):
    """Reads three batches ahead, as workers of a data loader do; its state counts the batches that it has given.

    A resumed epoch reads the batches again that were given before, and skips them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skips = 0
        self.ahead: deque[int] = deque()

    def __iter__(self) -> Iterator[Any]:
        unread = iter(self.order())
        self.ahead = deque(itertools.islice(unread, 3))
        self.position = 0
        while self.ahead:
            batch = self.ahead.popleft()
            self.ahead.extend(itertools.islice(unread, 1))
            self.position += 1
            if self.position > self.skips:
                yield self.batch(batch)
        self.epoch, self.position, self.skips = self.epoch + 1, 0, 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.skips = self.position


class OfFeed:
    """Batches of hfdsl's feed, by its cursor."""

    def __init__(self, feed: Feed | Prefetcher) -> None:
        self.feed, self.cursor = feed, Cursor(seed=3)

    def __iter__(self) -> Iterator[Any]:
        while True:
            batch, self.cursor = self.feed.take(self.cursor)
            yield batch

    def state_dict(self) -> dict[str, int]:
        return asdict(self.cursor)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.cursor = Cursor(**state)


@pytest.mark.parametrize(
    "loader",
    [Epochs, Records, OneBuffer, SkipsTheEnd, Unseeded, Once, Endless, Prefetching],
    ids=lambda cls: cls.__name__,
)
def test_loaders_that_lose_nothing(loader: Callable[[], Any]) -> None:
    check_loader(loader, batches=LENGTH)


@pytest.mark.parametrize("prefetches", [False, True])
def test_feeds_of_hfdsl(tmp_path: Any, prefetches: bool) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"word": "{"ab" * size}"}}\n' for size in range(1, 8)))
    encoder = Encoder(Prompt("{word}>"), load_tokenizer(Characters("ab>")), 16)
    feed = Feed(JsonLines(str(file)).open(), encoder, 2)
    check_loader(lambda: OfFeed(Prefetcher(feed) if prefetches else feed), batches=8)


class OffByOne(Epochs):
    """Counts a batch when the next one is asked for."""

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        while self.position < BATCHES:
            yield order[self.position]
            self.position += 1
        self.epoch, self.position = self.epoch + 1, 0


class WithoutEpoch(Epochs):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class AnotherSeed(Epochs):
    """Draws its seed for each run, and does not save it."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = random.getrandbits(64)

    def batch(self, number: int) -> Any:
        return number, self.seed


class LosesPrefetched(Prefetching):
    """Counts what it has read ahead as given."""

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position + len(self.ahead)}


class SharedOnSave(Epochs):
    """Returns the dict that it counts in."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"epoch": 0, "position": 0}

    def state_dict(self) -> dict[str, Any]:
        self.state.update(epoch=self.epoch, position=self.position)
        return self.state


class SharedOnLoad(Epochs):
    """Takes what it needs out of the dict that it is given."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state.pop("epoch"), state.pop("position")


class CountsFromResume(Epochs):
    """Counts the batches since it was loaded: right the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position - (self.loaded if not self.epoch else 0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = self.position


class RestartsEpoch(Epochs):
    """Begins at the first batch of an epoch whenever it is iterated over."""

    def __iter__(self) -> Iterator[Any]:
        self.position = 0
        return super().__iter__()


class WholeEpoch(Epochs):
    """Gives a whole epoch after the position, not what is left of it; the order is always the same."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(BATCHES):
            self.position = (self.position + 1) % BATCHES
            yield self.position


class SavesNext(Epochs):
    """Takes a batch to know where it is."""

    def state_dict(self) -> dict[str, Any]:
        self.position = min(self.position + 1, BATCHES)
        return super().state_dict()


class EndsEarly(Once):
    def load_state_dict(self, state: int) -> None:
        self.position = state + 1 if state == BATCHES - 1 else state


class EndsLate(Once):
    def load_state_dict(self, state: int) -> None:
        self.position = state - 1 if state == BATCHES else state


class Unsavable(Epochs):
    def state_dict(self) -> dict[str, Any]:
        return {"rest": iter(self)}


@pytest.mark.parametrize(
    ("loader", "problem"),
    [
        (OffByOne, ", resumed from the state saved after batch 0: batch 0 of the run comes in place of batch 1"),
        (WithoutEpoch, ", resumed from the state saved at the end of an epoch, after batch 3: batch "),
        (AnotherSeed, ", resumed from the state saved before the first batch: batch 0 is not the run's: "),
        (LosesPrefetched, ", resumed from the state saved after batch 0: batch "),
        (
            SharedOnSave,
            ": 'epoch' of the state saved before the first batch changed from 0 to 2 while the run continued",
        ),
        (SharedOnLoad, ": the state saved before the first batch changed from keys ['epoch', 'position'] to keys [] "),
        (CountsFromResume, ", saved and resumed after every batch: batch "),
        (RestartsEpoch, ", resumed from the state saved after batch 0: batch "),
        (
            WholeEpoch,
            ", resumed from the state saved after batch 0: the run's epoch ends before batch 4, and this one ",
        ),
        (SavesNext, ": state_dict changes what comes next: batch "),
        (EndsEarly, ", resumed from the state saved after batch 2: it ends before batch 3 of the run"),
        (EndsLate, ", resumed from the state saved after batch 3: a batch 4 follows, where the run ended"),
        (Unsavable, ": pickle cannot save the state before the first batch: TypeError: "),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_loaders_that_lose_or_repeat_batches(loader: type, problem: str) -> None:
    with pytest.raises(BrokenLoaderError) as error:
        check_loader(loader, batches=LENGTH)
    assert str(error.value).startswith(f"{loader.__name__}{problem}")


def test_one_epoch_does_not_show_the_order_of_the_next() -> None:
    """The longer the run, the more it covers: the page says to take more than an epoch."""
    check_loader(WithoutEpoch, batches=BATCHES)


class Empty(Epochs):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


ONE = Epochs()
TAKES = "HF921: check_loader: factory takes a function that returns a new loader, with state_dict and load_state_dict"


@pytest.mark.parametrize(
    ("factory", "batches", "text"),
    [
        (3, 4, f"{TAKES}, got 3"),
        (Epochs, 1, "HF921: check_loader: batches= takes a whole number of at least 2, got 1"),
        (lambda: [1, 2], 4, f"{TAKES}, got one that returns a list without state_dict"),
        (lambda: ONE, 4, f"{TAKES}, got one that returns the same again"),
        (Empty, 4, "HF922: check_loader would compare nothing: Empty yields no batch"),
    ],
    ids=["not a function", "one batch", "a list", "the same", "empty"],
)
def test_refusals(factory: Any, batches: int, text: str) -> None:
    with pytest.raises(DefinitionError) as error:
        check_loader(factory, batches=batches)
    assert str(error.value) == text
