"""Worker classes of the tests. They need no torch, so that a process starts fast."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import ray

from hfdsl.protocols import Protocol
from hfdsl.single_controller import Dispatch, Execute, Worker, collect_all_to_all, register
from hfdsl.types.rows import Grouped, Whole


def two_to_all(group: Any, *args: Any, **kwargs: Any) -> Any:
    """A list of two, repeated over the ranks; it grows the lists that it is given, as functions of the field do."""
    for value in (*args, *kwargs.values()):
        assert len(value) == 2
        for index in range(group.world_size - 2):
            value.append(value[index % 2])
    return args, kwargs


class Record:
    """A batch by its interface alone."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __hf_rows__(self) -> int:
        return len(self.rows)

    def __hf_slice__(self, start: int, stop: int) -> Record:
        return Record(self.rows[start:stop])

    @classmethod
    def __hf_concat__(cls, parts: list[Record]) -> Record:
        return cls([row for part in parts for row in part.rows])


def wait_for(file: Path) -> None:
    """Wait until a file is there, a minute at most."""
    for _ in range(6000):
        if file.exists():
            return
        time.sleep(0.01)


class Accumulator(Worker):
    """Starts at its rank."""

    def __init__(self, x: int = 0) -> None:
        self.value = self.rank + x

    def add(self, x: int, more: int = 0) -> int:
        self.value += x + more
        return self.value

    def env(self) -> dict[str, str]:
        names = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "EXTRA")
        return {name: os.environ[name] for name in names if name in os.environ}

    def pid(self) -> int:
        return os.getpid()

    def imported(self, name: str) -> bool:
        return name in sys.modules

    def about(self) -> tuple[int, int, int, int, str]:
        return self.rank, self.world_size, self.local_rank, self.local_world_size, str(self.coordinates)

    def fail(self, on: int, folder: str = "") -> int:
        """One rank raises; the others end once the test releases them in a folder, or after a minute."""
        if self.rank == on:
            raise ValueError(f"no good {on}")
        if folder:
            wait_for(Path(folder, "released"))
            Path(folder, f"ended {self.rank}").touch()
        return self.rank

    def die(self) -> None:
        os._exit(1)

    def give_lock(self) -> Any:
        return threading.Lock()


@ray.remote
class Methods(Worker):
    """Every kind of registered method, in a class that Ray has decorated."""

    def __init__(self, x: int) -> None:
        super().__init__()
        self.x = x
        self.seen: list[Any] = []

    def foo(self, y: int) -> int:
        return self.x + y

    @register(Dispatch.ONE_TO_ALL)
    def one_to_all(self, x: Any, y: Any = 0) -> Any:
        self.seen.append(x)
        return x + y + self.x

    @register(Dispatch.ONE_TO_ALL)
    def length(self, x: Any) -> int:
        return len(x)

    @register(Dispatch.ALL_TO_ALL)
    def all_to_all(self, x: int, y: int) -> int:
        return x + y + self.x

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def rank_zero(self, x: int, y: int) -> int:
        return self.x + y + x

    @register(dispatch_mode={"dispatch_fn": two_to_all, "collect_fn": collect_all_to_all})
    def custom(self, x: int, y: int) -> int:
        return self.x + y + x

    @register(dispatch_mode={"dispatch_fn": lambda group, x: x, "collect_fn": collect_all_to_all})
    def no_pair(self, x: int) -> int:
        return x

    @register(dispatch_mode={"dispatch_fn": lambda group, x: ((x,), {}), "collect_fn": collect_all_to_all})
    def short(self, x: int) -> int:
        return x

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def later(self, x: int) -> int:
        return x + self.rank

    @register(Dispatch.ALL_TO_ALL, Execute.RANK_ZERO, blocking=False)
    def rank_zero_later(self, x: Any) -> Any:
        return x

    @register(Dispatch.DP_PROTO)
    def double(self, rows: Any) -> Any:
        self.seen.append(rows)
        return [row * 2 for row in rows] if isinstance(rows, list) else rows * 2

    @register(Dispatch.DP_PROTO, blocking=False, pad="repeat_last")
    def double_later(self, rows: list[int]) -> list[int]:
        return [row * 2 for row in rows]

    @register(Dispatch.DP_PROTO, pad="cycle")
    def padded(self, rows: Any, other: Any = None) -> Any:
        return rows

    @register(Dispatch.DP_PROTO, pad="cycle", balance="lengths", blocking=False)
    def balanced_later(self, lengths: Any, names: Any) -> Any:
        """The names twice, each with the weight of all rows of its rank."""
        return [f"{name} of {sum(lengths)}" for name in names for _ in range(2)]

    @register(Dispatch.DP_PROTO)
    def pair(self, a: list[int], b: list[int]) -> list[tuple[int, int]]:
        return list(zip(a, b, strict=True))

    @register(Dispatch.DP_PROTO, rows=Grouped(4))
    def group_sums(self, rows: list[int]) -> list[int]:
        return [sum(rows[start : start + 4]) for start in range(0, len(rows), 4) for _ in range(4)]

    @register(Dispatch.DP_PROTO)
    def no_result(self, rows: list[int]) -> None:
        self.seen.append(rows)

    @register(Dispatch.DP_PROTO)
    def a_dict(self, rows: list[int]) -> Any:
        return {"rows": rows}

    @register(Dispatch.ONE_TO_ALL)
    def last_seen(self) -> Any:
        return self.seen[-1]

    @register(Dispatch.DP_PROTO)
    def fail_on(self, rows: list[int]) -> list[int]:
        if 3 in rows:
            raise KeyError("three")
        return rows

    @register(Dispatch.ONE_TO_ALL)
    def make_child(self, on: int) -> int:
        if self.rank != on:
            return 0
        child: Any = ray.remote(Child).remote(self.rank)
        number: int = ray.get(child.number.remote())
        return number


class QuotaError(Exception):
    """Takes other arguments than it hands on, and holds what does not pickle."""

    def __init__(self, user: str, *, limit: int) -> None:
        super().__init__()
        self.user, self.limit, self.lock = user, limit, threading.Lock()


class Failing(Worker):
    """Raises and hangs in every way."""

    def __init__(self) -> None:
        self.calls = 0

    @register(Dispatch.ONE_TO_ALL)
    def quota(self) -> None:
        raise QuotaError("alice", limit=3)

    @register(Dispatch.ONE_TO_ALL)
    def quit(self) -> None:
        sys.exit(3)

    @register(Dispatch.ONE_TO_ALL)
    def local_error(self) -> None:
        class LocalError(ZeroDivisionError): ...

        raise LocalError("here")

    @register(Dispatch.ONE_TO_ALL)
    def missing_file(self) -> None:
        (Path("/nowhere") / "file").read_text()

    @register(Dispatch.ONE_TO_ALL)
    def hang(self, on: list[int]) -> int:
        if self.rank in on:
            self.wait_for_peers()
        return self.rank

    def wait_for_peers(self) -> None:
        time.sleep(600)

    @register(Dispatch.DP_PROTO, blocking=False)
    def hang_later(self, rows: list[int]) -> list[int]:
        if self.rank == 1:
            self.wait_for_peers()
        return rows

    @register(Dispatch.DP_PROTO)
    def echo(self, rows: list[int]) -> list[int]:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    def count(self) -> tuple[int, int, int, str]:
        self.calls += 1
        return self.calls, self.rank, self.world_size, os.environ["MASTER_PORT"]

    @register(Dispatch.ONE_TO_ALL)
    def die(self, on: list[int]) -> None:
        if self.rank in on:
            os._exit(1)
        time.sleep(600)

    @register(Dispatch.ONE_TO_ALL)
    def exit_alone(self, on: int) -> None:
        if self.rank == on:
            os._exit(1)


class StuckStart(Worker):
    def __init__(self) -> None:
        if self.rank == 1:
            time.sleep(600)


class Rows(Worker):
    """Returns other rows than it received."""

    @register(Dispatch.DP_PROTO)
    def lose_one(self, rows: list[int]) -> list[int]:
        return rows[1:] if self.rank == 1 else rows

    @register(Dispatch.DP_PROTO)
    def lose_everywhere(self, rows: list[int]) -> list[int]:
        return rows[1:]

    @register(Dispatch.DP_PROTO)
    def uneven(self, rows: list[int]) -> list[int]:
        return rows * (self.rank + 1)

    @register(Dispatch.DP_PROTO)
    def twice(self, rows: list[int]) -> list[int]:
        return [row for row in rows for _ in range(2)]

    @register(Dispatch.DP_PROTO, rows=Grouped(2))
    def best_of_two(self, rows: list[int]) -> list[int]:
        return [max(rows[first : first + 2]) for first in range(0, len(rows), 2)]

    @register(Dispatch.DP_PROTO, rows=Grouped(2))
    def best_of_all(self, rows: list[int]) -> list[int]:
        return [max(rows)]

    @register(Dispatch.DP_PROTO, blocking=False, pad="cycle")
    def later(self, rows: list[int]) -> list[int]:
        return rows

    @register(Protocol("PARTS", split=("rank",), collect={"rank": "join"}, gives="per_rank"))
    def filtered(self, rows: list[int]) -> list[int]:
        return [row for row in rows if row % 2]

    @register(Dispatch.DP_PROTO)
    def container(self, rows: Any) -> Any:
        return rows

    @register(Dispatch.DP_PROTO, blocking=False)
    def container_later(self, rows: Any) -> Any:
        return rows

    @register(Dispatch.DP_PROTO)
    def shorter(self, rows: Any) -> Any:
        return rows.__hf_slice__(0, 1) if self.rank else rows

    @register(Dispatch.DP_PROTO)
    def metrics(self, rows: Any) -> Any:
        return Notes({"loss": [float(self.rank)]})


class Notes:
    """A container that may hold nothing but notes, as those of the field do."""

    def __init__(self, notes: dict[str, list[float]], rows: list[int] | None = None) -> None:
        self.notes, self.rows = notes, rows

    def __hf_rows__(self) -> int | None:
        return None if self.rows is None else len(self.rows)

    def __hf_slice__(self, start: int, stop: int) -> Notes:
        return Notes(self.notes, self.rows and self.rows[start:stop])

    @classmethod
    def __hf_concat__(cls, parts: list[Notes]) -> Notes:
        rows = [row for part in parts for row in part.rows or []]
        return cls({"loss": [loss for part in parts for loss in part.notes["loss"]]}, rows or None)


class Yielding(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)

    @register(Dispatch.DP_PROTO)
    def doubled(self, rows: list[int]) -> Iterator[int]:
        for row in rows:
            yield row * 2

    @register(Dispatch.ONE_TO_ALL)
    def returned(self, count: int) -> Iterator[int]:
        return (number for number in range(count))

    @register(Dispatch.ONE_TO_ALL)
    def fail_in_the_middle(self) -> Iterator[int]:
        yield 1
        raise IndexError("after the first")


class YieldingLater(Worker):
    @register(Dispatch.ONE_TO_ALL)
    async def numbers(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0)
            yield number

    @register(Dispatch.ONE_TO_ALL)
    def plain(self, count: int) -> Iterator[int]:
        yield from range(count)


class Child:
    def __init__(self, number: int) -> None:
        self.stored = number

    def number(self) -> int:
        return self.stored * 10


class Grid(Worker):
    """3D methods; ranks that are not collected give what could not be joined."""

    @register(Dispatch.THREE_D_PROTO)
    def three_d(self, rows: list[int]) -> Any:
        collected = self.coordinates.pp == self.mesh.pp - 1 and self.coordinates.tp == 0
        return [(row, self.coordinates.dp) for row in rows] if collected else lambda: "never looked at"

    @register("3D_ALL_MICRO_DP")
    def micro(self, rows: list[int]) -> Any:
        return [(row, self.coordinates.dp) for row in rows]

    @register(Dispatch.THREE_D_PP_ONLY)
    def stages(self, x: int) -> tuple[int, int]:
        return x, self.coordinates.pp

    @register(Dispatch.THREE_D_PROTO, blocking=False)
    def fail_quietly(self, rows: list[int]) -> list[int]:
        if self.coordinates.tp == 1:
            raise ValueError("not collected, yet not overlooked")
        return rows

    @register(Protocol("SPREAD", split=("tp",), collect={"tp": "join", "pp": "first", "dp": "first"}))
    def over_tp(self, rows: list[int]) -> list[int]:
        return rows


class NeedsAll(Worker):
    @register(Dispatch.DP_PROTO, rows=Whole)
    def whiten(self, rows: list[float]) -> list[float]:
        return rows


class Takes(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def shutdown(self) -> None: ...


class Picky(Worker):
    def __init__(self, bad: int) -> None:
        if self.rank == bad:
            raise RuntimeError(f"cannot start {bad}")


class Asynchronous(Worker):
    def __init__(self) -> None:
        self.open = 0

    @register(Dispatch.ONE_TO_ALL)
    async def together(self, x: int) -> int:
        await asyncio.sleep(0.01)
        return x + self.rank

    @register(Dispatch.DP_PROTO)
    def plain(self, rows: list[int]) -> list[int]:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    async def fail(self) -> None:
        raise ValueError("in a coroutine")


class Actor(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def name(self) -> str:
        return f"actor {self.rank} {os.getpid()}"

    @register(Dispatch.DP_PROTO)
    def add_one(self, rows: list[int]) -> list[int]:
        return [row + 1 for row in rows]


class ActorRollout(Worker):
    def __init__(self, b: int) -> None:
        self.b = b

    @register(Dispatch.ONE_TO_ALL)
    def name(self) -> str:
        return f"rollout {self.b} {os.getpid()}"
