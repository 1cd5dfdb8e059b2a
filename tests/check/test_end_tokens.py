"""End tokens in masks and labels of users' roles: reported where nothing learns them, and nowhere else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import torch
import torch.nn.functional as F
import hfdsl as hf

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    ids: hf.i64[B, P]
class Rollout(hf.Batch):
    tokens: hf.i64[B, R]
    {column}: hf.bool_[B, R]

class Policy(hf.Worker):
    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer
        {pad}
        self.eos_id = self.tokenizer.eos_token_id
        self.model = torch.nn.Embedding(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def ends_of(self, tokens):
        return tokens == self.tokenizer.eos_token_id

    def sample(self, ids):
        return self.engine.generate(ids)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def write(self, prompts: Prompts) -> Rollout:
        tokens = self.sample(prompts.ids.tensor)
        eos_id = self.tokenizer.eos_token_id
{mask}
        return Rollout(tokens=tokens, {column}=mask)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout) -> None:
        ids = rollout.tokens.tensor
        logits = self.model(ids)[:, :-1]
        labels = ids.clone()
{labels}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

@hf.dataflow
def step(prompts: Prompts, policy: Policy) -> None:
    policy.learn(policy.write(prompts))

@hf.dataflow
def sampled(prompts: Prompts, policy: Policy) -> Rollout:
    return policy.write(prompts)
"""
SAME = "self.tokenizer.pad_token_id = self.tokenizer.eos_token_id"
OTHER = "self.tokenizer.pad_token_id = 0"
IF_NONE = "self.tokenizer.pad_token_id = self.tokenizer.pad_token_id or self.tokenizer.eos_token_id"
WITHOUT = {
    "no padding": "mask = tokens != self.tokenizer.pad_token_id",
    "no padding, as numbers": "mask = tokens.ne(self.tokenizer.pad_token_id).long().bool()",
    "no end": "mask = tokens != self.eos_id",
    "before the end": "ends = tokens == eos_id\nmask = ends.long().cumsum(-1) == 0",
    "before the end, in one line": "mask = (tokens == eos_id).cumsum(dim=1) < 1",
    "not done": "done = torch.cumsum(self.ends_of(tokens).int(), 1) > 0\nmask = ~done",
    "not done by a function": "done = self.ends_of(tokens).cumsum(1).gt(0)\nmask = torch.logical_not(done)",
    "with another mask": "mask = (tokens != 7) & ~self.ends_of(tokens)",
}
WITH = {
    "up to the end": "ends = tokens == eos_id\nmask = (ends.long().cumsum(-1) - ends.long()) == 0",
    "the ends before": "ends = (tokens == eos_id).long()\nmask = F.pad(ends.cumsum(-1), (1, 0))[:, :-1] == 0",
    "shifted": "ends = tokens == eos_id\nbefore = ends.cumsum(-1)[:, :-1] == 0\n"
    "mask = torch.cat([torch.ones(len(tokens), 1, dtype=torch.bool), before], 1)",
    "of states": "states = torch.cat([prompts.ids.tensor[:, -1:], tokens], 1)[:, :-1]\nmask = states.ne(eos_id)",
    "of states, cut afterwards": "states = torch.cat([prompts.ids.tensor[:, -1:], tokens], 1)\n"
    "mask = (states != eos_id)[:, :-1] & (tokens != 7)",
    "of states, until one has ended": "states = torch.cat([prompts.ids.tensor[:, -1:], tokens], 1)\n"
    "states = states[:, :-1].contiguous()\nmask = (states == eos_id).cumsum(1) == 0",
    "summed twice": "mask = self.ends_of(tokens).long().cumsum(-1).cumsum(-1) <= 1",
    "by positions": "ends = (tokens == eos_id).long()\n"
    "last = torch.where(ends.any(1), ends.argmax(1), tokens.shape[1])\n"
    "mask = torch.arange(tokens.shape[1]) <= last[:, None]",
    "restored": "ends = tokens == eos_id\nmask = tokens != eos_id\n"
    "mask[torch.arange(len(tokens)), ends.long().argmax(1)] = True",
    "either": "ends = tokens == eos_id\nbefore = ends.cumsum(1) == 0\nmask = before | (ends & (ends.cumsum(1) == 1))",
    "by a loop": "mask = torch.zeros_like(tokens, dtype=torch.bool)\n"
    "running = torch.ones(len(tokens), dtype=torch.bool)\n"
    "for t in range(tokens.shape[1]):\n    mask[:, t] = running\n    running = running & (tokens[:, t] != eos_id)",
}
SUM = "F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)"
IGNORES = {
    "by an index": f"labels[labels == self.tokenizer.pad_token_id] = -100\nloss = {SUM}",
    "of tokens": f"labels[ids == self.tokenizer.pad_token_id] = -100\nlabels[:, :1] = -100\nloss = {SUM}",
    "filled": f"labels = labels.masked_fill(ids.eq(self.tokenizer.pad_token_id), -100)\nloss = {SUM}",
    "filled in place": f"labels.masked_fill_(labels == self.tokenizer.eos_token_id, -100)\nloss = {SUM}",
    "chosen": f"labels = torch.where(ids == self.tokenizer.pad_token_id, -100, ids)\nloss = {SUM}",
    "chosen otherwise": f"labels = torch.where(ids != self.tokenizer.pad_token_id, ids, -100)\nloss = {SUM}",
    "in parts": "labels[labels == self.tokenizer.pad_token_id] = -100\nloss = 0.0\n"
    "for x, y in zip(logits.chunk(2), labels[:, 1:].chunk(2)):\n"
    "    loss = loss + F.cross_entropy(x.reshape(-1, 8), y.reshape(-1), ignore_index=-100, reduction='sum')",
}
KEEPS = {
    "none": f"loss = {SUM}",
    "by the mask": f"labels[~rollout.response_mask.tensor] = -100\nloss = {SUM}",
    "restored": "labels[labels == self.tokenizer.pad_token_id] = -100\n"
    f"labels[rollout.response_mask.tensor] = ids[rollout.response_mask.tensor]\nloss = {SUM}",
    "of other tokens": f"labels[labels == 7] = -100\nloss = {SUM}",
    "for a count": "kept = labels[:, 1:] != self.tokenizer.pad_token_id\nself.count = kept.sum()\n" + f"loss = {SUM}",
}
FULL = "mask = (self.ends_of(tokens).long().cumsum(-1) - self.ends_of(tokens).long()) == 0"


def program(
    folder: Path, mask: str = FULL, labels: str = KEEPS["none"], pad: str = SAME, column: str = "response_mask"
) -> Any:
    mask, labels = (textwrap.indent(body, " " * 8) for body in (mask, labels))
    return loaded(folder, MODULE.format(mask=mask, labels=labels, pad=pad, column=column))


def policy_of(module: Any) -> Any:
    return module.Policy(SimpleNamespace(eos_token_id=2, pad_token_id=1))


def masks_the_end(module: Any) -> bool:
    """Whether the mask of responses has all tokens of a response but its end token."""
    policy, tokens = policy_of(module), torch.tensor([[3, 4, 2, 2, 2], [3, 5, 4, 3, 2]])
    policy.engine = SimpleNamespace(generate=lambda ids: tokens)
    mask = policy.write(module.Prompts(ids=torch.ones(2, 1).long())).response_mask.tensor
    assert mask[0, :2].all()
    assert mask[1, :4].all()
    return not mask[0, 2] and not mask[1, 4]


def learns_to_end(module: Any) -> bool:
    """Whether the first end token changes what a model says after the token before it."""
    policy, tokens = policy_of(module), torch.tensor([[3, 4, 5, 2], [3, 6, 2, 2]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    before = policy.model.weight.detach().clone()
    policy.learn(module.Rollout(tokens=tokens, response_mask=mask))
    return not torch.equal(policy.model.weight[5], before[5])


def codes(dataflow: Any, module: Any) -> tuple[str, ...]:
    report: Any = dataflow.check(dims={module.B: 4, module.P: 2, module.R: 5})
    return tuple(code for code in report.codes if code == "HF369")


@pytest.mark.parametrize("name", WITHOUT)
def test_masks_without_end_tokens_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WITHOUT[name])
    assert masks_the_end(module)
    assert codes(module.step, module) == ("HF369",)
    assert codes(module.sampled, module) == ()


@pytest.mark.parametrize("name", WITH)
def test_masks_up_to_end_tokens_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WITH[name])
    assert not masks_the_end(module)
    assert codes(module.step, module) == ()


@pytest.mark.parametrize("name", IGNORES)
def test_labels_without_end_tokens_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, labels=IGNORES[name])
    assert not learns_to_end(module)
    assert codes(module.step, module) == ("HF369",)


@pytest.mark.parametrize("name", KEEPS)
def test_labels_with_end_tokens_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, labels=KEEPS[name])
    assert learns_to_end(module)
    assert codes(module.step, module) == ()


@pytest.mark.parametrize("pad", [OTHER, IF_NONE, "pass"])
def test_padding_with_another_token_is_left_out(tmp_path: Path, pad: str) -> None:
    module = program(tmp_path, WITHOUT["no padding"], IGNORES["by an index"], pad)
    assert codes(module.step, module) == ()
    assert not masks_the_end(module)
    assert learns_to_end(module)


def test_masks_of_other_names_may_be_of_anything(tmp_path: Path) -> None:
    module = program(tmp_path, WITHOUT["no end"], column="visible")
    assert codes(module.step, module) == ()
