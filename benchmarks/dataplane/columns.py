"""The PPO chain that every way of running it shares: its columns, who reads what, and the bodies of its roles.

A row is 64 KiB. A body makes its outputs once for each new batch of prompts and returns the same tensors from then on,
so that a timed step costs what data and control cost. Column 0 carries the batch's number, by which a body knows
a new batch, and column 1 tells its shards apart. What a body makes depends on every value that it reads, so the digests
at the end show that a path brought each column to each reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Chain:
    """The columns of one version of the chain: width and dtype of each, and what a role reads."""

    name: str
    prompt: int
    response: int
    columns: Mapping[str, tuple[int, torch.dtype]]
    reads: Mapping[str, tuple[str, ...]]

    def makes(self, role: str) -> tuple[str, ...]:
        """The columns that a role returns, but those that this version leaves out."""
        return tuple(name for name in MAKES[role] if name in self.columns)

    def crossing(self) -> tuple[str, ...]:
        """What the critic's processes read of a rollout."""
        here = {name for role in ON_CRITIC for name in self.reads[role]}
        return tuple(name for name in self.makes("generate") if name in here)


MAKES = {
    "generate": ("input_ids", "attention_mask", "position_ids", "responses", "response_mask", "old_log_probs"),
    "reference": ("ref_log_probs",),
    "estimate": ("values",),
    "score": ("token_level_scores",),
    "advantage": ("advantages", "returns"),
    "update_critic": (),
    "update_actor": (),
}
ON_ACTOR = ("generate", "reference", "update_actor")
ON_CRITIC = ("estimate", "score", "advantage", "update_critic")

_FLOATS = ("old_log_probs", "ref_log_probs", "values", "token_level_scores", "advantages", "returns")
_SEQUENCES = ("input_ids", "attention_mask", "position_ids", "responses")
_READS = {
    "generate": ("prompts",),
    "reference": _SEQUENCES,
    "estimate": _SEQUENCES,
    "score": ("input_ids", "attention_mask", "responses"),
    "advantage": ("values", "token_level_scores", "response_mask"),
    "update_critic": (*_SEQUENCES, "response_mask", "values", "returns"),
    "update_actor": (*_SEQUENCES, "response_mask", "old_log_probs", "ref_log_probs", "advantages"),
}
_DERIVED = {"position_ids", "responses"}


def wide(name: str, prompt: int, response: int) -> Chain:
    """The chain as trainers have it: int64 ids and masks, positions and responses as columns of their own."""
    columns = {
        "prompts": (prompt, torch.int64),
        **dict.fromkeys(_SEQUENCES[:3], (prompt + response, torch.int64)),
        "responses": (response, torch.int64),
        "response_mask": (response, torch.int64),
        **dict.fromkeys(_FLOATS, (response, torch.float32)),
    }
    return Chain(name, prompt, response, columns, _READS)


def narrow(name: str, prompt: int, response: int) -> Chain:
    """With int32 ids, one byte a mask, and no column that its reader can take from another."""
    columns = {n: kind for n, kind in wide(name, prompt, response).columns.items() if n not in _DERIVED}
    columns["input_ids"] = (prompt + response, torch.int32)
    columns["attention_mask"], columns["response_mask"] = (prompt + response, torch.uint8), (response, torch.uint8)
    reads = {role: tuple(n for n in names if n not in _DERIVED) for role, names in _READS.items()}
    return Chain(name, prompt, response, columns, reads)


WIDE, NARROW, TINY = wide("wide", 512, 768), narrow("narrow", 512, 768), wide("tiny", 2, 2)
CHAINS = {chain.name: chain for chain in (WIDE, NARROW, TINY)}
ROW_BYTES = sum(width * dtype.itemsize for width, dtype in WIDE.columns.values())  # 64 KiB


def prompts(rows: int, number: int, chain: Chain = WIDE) -> torch.Tensor:
    """A batch of prompts; two numbers make two batches that differ in every row."""
    ids = (torch.arange(rows)[:, None] * 7 + torch.arange(chain.prompt) * number) % 32_000
    ids[:, 0] = number
    return ids


def computed(chain: Chain, role: str, columns: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What a role makes of what it reads: columns, or a number for an update. Rows do not depend on one another."""
    inputs = [columns[name] for name in chain.reads[role]]
    digest = torch.zeros(len(inputs[0]), dtype=torch.int64)
    for place, column in enumerate(inputs):
        weights = torch.arange(column.shape[1]) % 97 + place + 1
        digest = (digest * 31 + (column.to(torch.int64) * weights).sum(1)) % 65_521
    if not chain.makes(role):
        return {"digest": int(digest.sum())}
    outputs = {}
    for place, name in enumerate(chain.makes(role)):
        width, dtype = chain.columns[name]
        mask = name.endswith("mask")
        values = (digest[:, None] + torch.arange(width) * (place + 1)) % (2 if mask else 32_000)
        if not mask:
            values[:, 0] = inputs[0][:, 0].to(torch.int64)
        outputs[name] = values.to(dtype)
    return outputs


@cache
def expected(chain: Chain, rows: int, number: int) -> tuple[int, int]:
    """The digests of the two updates for these prompts, computed in one place."""
    columns: dict[str, Any] = {"prompts": prompts(rows, number, chain)}
    for role in MAKES:
        columns |= {role: result} if "digest" in (result := computed(chain, role, columns)) else result
    return columns["update_critic"]["digest"], columns["update_actor"]["digest"]


class Body:
    """A role's body. ``touch`` has it read a value of every page of its inputs in every step."""

    def __init__(self, chain: Chain, role: str, touch: bool = False) -> None:
        self._chain, self._role, self._touch = chain, role, touch
        self._batch: tuple[int, ...] | None = None
        self._made: dict[str, Any] = {}

    def __call__(self, columns: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The outputs for these columns."""
        first = columns[self._chain.reads[self._role][0]]
        batch = int(first[0, 0]), int(first[0, 1]), len(first)
        if batch != self._batch:
            self._made, self._batch = computed(self._chain, self._role, columns), batch
        if self._touch:
            for name in self._chain.reads[self._role]:
                column = columns[name]
                column.reshape(-1)[:: 4096 // column.element_size()].sum()
        return self._made


def bodies(chain: Chain, touch: bool = False, roles: Sequence[str] = tuple(MAKES)) -> dict[str, Body]:
    """A body for each of these roles."""
    return {role: Body(chain, role, touch) for role in roles}
