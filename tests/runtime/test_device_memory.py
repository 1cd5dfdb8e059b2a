"""Blocks that stay mapped: held against a machine on which a mapping outlives the memory, and handles come again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.runtime.transports.device_memory import UNMAP_AFTER_TRANSFERS, Block, Mappings

SPACE = 6
"""Addresses that a producer has; a block takes some of them."""


@dataclass
class Machine:
    """What CUDA may do at worst: a handle is the block's address alone, and one that is open gives what it gave."""

    made: int = 0
    alive: dict[str, list[Block]] = field(default_factory=dict)
    mapped: dict[int, Block] = field(default_factory=dict)
    """By address in the reader what lies there, as it was when it was mapped."""
    lost: set[str] = field(default_factory=set)
    addresses: Iterator[int] = field(default_factory=lambda: count(1000))

    def allocate(self, producer: str, size: int) -> Block | None:
        occupied = {at for block in self.alive.get(producer, []) for at in range(block.start, block.start + block.size)}
        for start in range(SPACE - size + 1):
            if occupied.isdisjoint(range(start, start + size)):
                self.made += 1
                block = Block(producer, self.made, start, size, f"{producer}:{start}".encode())
                self.alive.setdefault(producer, []).append(block)
                return block
        return None

    def free(self, block: Block) -> None:
        self.alive[block.producer].remove(block)

    def open(self, block: Block) -> int:
        if block.producer in self.lost:
            raise RuntimeError("no such process")
        for address, mapping in self.mapped.items():
            if mapping.handle == block.handle:
                return address
        self.mapped[address := next(self.addresses)] = block
        return address

    def close(self, address: int) -> None:
        del self.mapped[address]

    def dead(self) -> list[Block]:
        """The freed memory that is still mapped, and so not free."""
        return [block for block in self.mapped.values() if block not in self.alive[block.producer]]


def keeping(machine: Machine) -> Mappings:
    mappings = Mappings(machine.open, machine.close)
    mappings.keep = True
    return mappings


def read(machine: Machine, mappings: Mappings, blocks: Sequence[Block]) -> None:
    with mappings.mapped(blocks) as addresses:
        assert {block: machine.mapped[at] for block, at in addresses.items()} == {block: block for block in blocks}


producers = st.sampled_from(["a", "b"])
acts = st.one_of(
    st.tuples(st.just("allocate"), producers, st.integers(1, 3)),
    st.tuples(st.just("free"), producers, st.integers(0, 3)),
    st.tuples(st.just("read"), producers, st.integers(0, 2**4 - 1)),
)


@given(st.lists(acts, max_size=60), st.booleans())
def test_reads_return_live_blocks_and_dead_ones_are_unmapped(program: list[tuple[str, str, int]], keep: bool) -> None:
    machine = Machine(alive={"a": [], "b": []})
    mappings = keeping(machine)
    mappings.keep = keep
    past: dict[str, list[set[Block]]] = {"a": [], "b": []}
    for act, producer, number in program:
        alive = machine.alive[producer]
        if act == "allocate":
            machine.allocate(producer, number)
        elif act == "free" and number < len(alive):
            machine.free(alive[number])
        elif wanted := [block for place, block in enumerate(alive) if act == "read" and number >> place & 1]:
            read(machine, mappings, wanted)
            past[producer].append(set(wanted))
            recent = set().union(*past[producer][-UNMAP_AFTER_TRANSFERS:]) if keep else set()
            mapped = [block for block in machine.mapped.values() if block.producer == producer]
            assert len(mapped) == len(set(mapped)), "a block is mapped once"
            assert set(mapped) <= recent
            assert {block for block in recent if block in alive} <= set(mapped), "what is there still stays"
            assert len(mappings) == len(machine.mapped)
    mappings.release()
    assert machine.mapped == {}


def test_a_freed_block_stays_for_a_few_transfers_at_most() -> None:
    machine = Machine()
    mappings = keeping(machine)
    old, second = machine.allocate("a", 2), machine.allocate("a", 1)
    assert old
    assert second
    read(machine, mappings, [old, second])
    machine.free(old)
    for _ in range(UNMAP_AFTER_TRANSFERS - 1):
        read(machine, mappings, [second])
        assert machine.dead() == [old]
    read(machine, mappings, [second])
    assert machine.dead() == []


def test_a_block_at_a_reused_address_is_a_new_block() -> None:
    machine = Machine()
    mappings = keeping(machine)
    old = machine.allocate("a", 3)
    assert old
    read(machine, mappings, [old])
    machine.free(old)
    new = machine.allocate("a", 1)
    assert new
    assert new.handle == old.handle
    read(machine, mappings, [new])
    assert machine.dead() == []


def test_another_process_at_the_same_address_is_another() -> None:
    machine = Machine()
    mappings = keeping(machine)
    blocks = [machine.allocate(producer, 2) for producer in ("a", "b")]
    read(machine, mappings, [block for block in blocks if block])
    assert len(machine.mapped) == 2


def test_nothing_of_a_transfer_that_failed_stays() -> None:
    machine = Machine(lost={"b"})
    mappings = keeping(machine)
    mine, gone = machine.allocate("a", 1), machine.allocate("b", 1)
    assert mine
    assert gone
    with pytest.raises(RuntimeError, match="no such process"), mappings.mapped([mine, gone]):
        pass
    assert machine.mapped == {}
    with pytest.raises(ValueError, match="copy"), mappings.mapped([mine]):
        raise ValueError("copy")
    assert machine.mapped == {}
    read(machine, mappings, [mine])


def test_an_error_while_unmapping_does_not_hide_why() -> None:
    def refuse(_: int) -> None:
        raise RuntimeError("CUDA has failed before")

    machine = Machine()
    block = machine.allocate("a", 1)
    assert block
    mappings = Mappings(machine.open, refuse)
    with pytest.raises(ValueError, match="copy") as caught, mappings.mapped([block]):
        raise ValueError("copy")
    assert caught.value.__notes__ == ["CUDA has failed before"]
    with pytest.raises(RuntimeError, match="failed before"), mappings.mapped([block]):
        pass


def test_nobody_unmaps_what_another_thread_reads() -> None:
    machine = Machine()
    mappings = keeping(machine)
    blocks = [block for producer in ("a", "b") if (block := machine.allocate(producer, 2))]
    over, wrong = threading.Event(), list[Block]()

    def reads(block: Block) -> None:
        while not over.is_set():
            with mappings.mapped([block]) as addresses:
                time.sleep(0)
                if machine.mapped.get(addresses[block]) != block:
                    wrong.append(block)

    threads = [threading.Thread(target=reads, args=(block,)) for block in blocks * 2]
    for thread in threads:
        thread.start()
    for _ in range(200):
        mappings.release()
        time.sleep(0)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    mappings.release()
    assert machine.mapped == {}
