"""Models of users' roles: values, log-probs and scores that depend on padding or on their own token, and no others."""

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
import hfdsl as hf

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    prompt: hf.i64[B, P]
    {prompt_mask}: hf.bool_[B, P]
class Rollout(hf.Batch):
    ids: hf.i64[B, hf.Add[P, R]]
    attention_mask: hf.bool_[B, hf.Add[P, R]]
    response_mask: hf.bool_[B, R]
class Numbers(hf.Batch):
    {column}: hf.f32[{dims}]
class Estimates(hf.Batch):
    advantages: hf.f32[B, R]

def selected(logits, tokens):
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

class Sampler(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def write(self, prompts: Prompts) -> Rollout: ...

class Model(hf.Worker):
    def __init__(self, model, head) -> None:
        self.model, self.head = model, head

    def forward(self, ids, mask=None):
        return self.model(ids, attention_mask=mask) if mask is not None else self.model(ids, use_cache=False)

    def values(self, ids, mask, n):
        hidden = self.model(ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1]
        return self.head(hidden).squeeze(-1)[:, -n - 1 : -1]

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("model")
    def numbers(self, rollout: Rollout) -> Numbers:
        ids, mask = rollout.ids.tensor, rollout.attention_mask.tensor
        n = rollout.response_mask.tensor.shape[1]
{body}
        return Numbers({column}=result)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("model")
    def learn(self, rollout: Rollout, numbers: Numbers) -> None: ...

class Policy(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, estimates: Estimates) -> None: ...

@hf.function
def estimate(rollout: Rollout, numbers: Numbers) -> Estimates:
    numbers, mask = numbers.{column}.tensor, rollout.response_mask.tensor
    return Estimates(advantages=1.0 - (numbers if numbers.dim() == 2 else numbers[:, None]) * mask)

@hf.dataflow
def step(prompts: Prompts, sampler: Sampler, model: Model, policy: Policy) -> None:
    rollout = sampler.write(prompts)
    numbers = model.numbers(rollout)
    policy.update(rollout, estimate(rollout, numbers))
    model.learn(rollout, numbers)

@hf.dataflow
def shown(prompts: Prompts, sampler: Sampler, model: Model) -> Numbers:
    return model.numbers(sampler.write(prompts))
"""
HIDDEN = "hidden = self.model(ids, attention_mask=mask).last_hidden_state\n"
UNMASKED = {
    "log-probs": "logits = self.model(ids).logits[:, -n - 1 : -1]\nresult = selected(logits, ids[:, -n:])",
    "shifted log-probs": "logits = self.model(input_ids=ids).logits[:, :-1]\n"
    "result = selected(logits[:, -n:], ids[:, 1:][:, -n:])",
    "a method": "logits = self.forward(ids).logits\nresult = selected(logits[:, -n - 1 : -1], ids[:, -n:])",
    "rows": "parts = []\nfor start in range(0, len(ids), 2):\n    rows = slice(start, start + 2)\n"
    "    logits = self.model(ids[rows]).logits[:, -n - 1 : -1]\n    parts.append(selected(logits, ids[rows][:, -n:]))\n"
    "result = torch.cat(parts)",
    "values": "hidden = self.model(ids, output_hidden_states=True).hidden_states[-1]\n"
    "result = self.head(hidden).squeeze(-1)[:, -n - 1 : -1]",
}
MASKED = {
    "log-probs": "logits = self.model(ids, attention_mask=mask).logits[:, -n - 1 : -1]\n"
    "result = selected(logits, ids[:, -n:])",
    "by position": "logits = self.model(ids, mask).logits[:, -n - 1 : -1]\nresult = selected(logits, ids[:, -n:])",
    "a method": "logits = self.forward(ids, mask).logits\nresult = selected(logits[:, -n - 1 : -1], ids[:, -n:])",
    "options": "options = {'attention_mask': mask}\nlogits = self.model(ids, **options).logits[:, -n - 1 : -1]\n"
    "result = selected(logits, ids[:, -n:])",
    "values": "result = self.values(ids, mask, n)",
    "tokens without padding": "ids = ids.masked_fill(~mask, 0)\nlogits = self.model(ids, mask).logits[:, -n - 1 : -1]\n"
    "result = selected(logits, ids[:, -n:])",
}
LATE = {
    "all of the end": HIDDEN + "result = self.head(hidden).squeeze(-1)[:, -n:]",
    "one of a few": HIDDEN + "result = self.head(hidden)[..., 0][:, -n:]",
    "at once": HIDDEN + "result = self.head(hidden)[:, -n:, 0]",
    "layers": "hidden = self.model(ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1]\n"
    "result = self.head(hidden.float()).squeeze(-1)[:, -n:].detach() * rollout.response_mask.tensor",
    "logits of one label": "result = self.model(input_ids=ids, attention_mask=mask).logits[..., 0][:, -n:]",
    "cut first": HIDDEN + "values = self.head(hidden).squeeze(-1)\nlast = values[:, -n:]\nresult = last.float()",
}
IN_TIME = {
    "a method": "result = self.values(ids, mask, n)",
    "cut twice": HIDDEN + "result = self.head(hidden).squeeze(-1)[:, :-1][:, -n:]",
    "cut before": HIDDEN + "result = self.head(hidden[:, :-1]).squeeze(-1)[:, -n:]",
    "a shorter input": "hidden = self.model(ids[:, :-1], attention_mask=mask[:, :-1]).last_hidden_state\n"
    "result = self.head(hidden).squeeze(-1)[:, -n:]",
    "logits of one label": "result = self.model(ids, mask).logits[..., 0][:, -n - 1 : -1]",
    "rolled": HIDDEN + "result = self.head(hidden).squeeze(-1).roll(1, 1)[:, -n:]",
    "by places": HIDDEN + "at = torch.arange(ids.shape[1])[-n:] - 1\nresult = self.head(hidden).squeeze(-1)[:, at]",
}
AFTER = {
    "the last column": HIDDEN + "result = self.head(hidden).squeeze(-1)[:, -1]",
    "the last column of one": HIDDEN + "result = self.head(hidden)[:, -1, 0]",
    "logits of one label": "scores = self.model(ids, attention_mask=mask).logits[..., 0]\nresult = scores[:, -1]",
    "the state of the last column": HIDDEN + "result = self.head(hidden[:, -1]).squeeze(-1)",
}
AT_THE_END = {
    "gathered": HIDDEN + "last = mask.long().cumsum(1).argmax(1)\n"
    "result = self.head(hidden).squeeze(-1).gather(1, last[:, None]).squeeze(1)",
    "by rows": HIDDEN + "last = mask.long().cumsum(1).argmax(1)\n"
    "result = self.head(hidden).squeeze(-1)[torch.arange(len(ids)), last]",
    "moved to the end": "order = torch.argsort(mask.long(), dim=1, stable=True)\n"
    "ids, mask = ids.gather(1, order), mask.gather(1, order)\n"
    + HIDDEN
    + "result = self.head(hidden).squeeze(-1)[:, -1]",
    "a mean": HIDDEN + "result = (self.head(hidden).squeeze(-1) * mask).sum(1) / mask.sum(1)",
}


class Tail(torch.nn.Module):
    """A causal model: of each token the sum of what it has read, but for what a mask leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 8)
        torch.nn.init.normal_(self.table.weight, generator=torch.Generator().manual_seed(1))

    def forward(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> SimpleNamespace:
        read = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = (self.table(input_ids) * read[..., None]).cumsum(1)
        return SimpleNamespace(logits=hidden, last_hidden_state=hidden, hidden_states=(hidden,))


def program(
    folder: Path,
    body: str,
    column: str = "values",
    dims: str = "B, R",
    prompt_mask: str = "prompt_mask",
    template: str = MODULE,
) -> Any:
    text = template.format(body=textwrap.indent(body, " " * 8), column=column, dims=dims, prompt_mask=prompt_mask)
    return loaded(folder, text)


def numbers(module: Any, ids: list[int], mask: list[int]) -> torch.Tensor:
    """What a role gives for a prompt of three tokens and a response of three."""
    head = torch.nn.Linear(8, 1, bias=False)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(2))
    rows = torch.tensor([ids, ids]), torch.tensor([mask, mask]).bool()
    rollout = module.Rollout(ids=rows[0], attention_mask=rows[1], response_mask=rows[1][:, -3:])
    [name] = module.Numbers.__annotations__
    with torch.no_grad():
        result: torch.Tensor = getattr(module.Model(Tail(), head).numbers(rollout), name).tensor[0]
    return result


def reads_padding(module: Any) -> bool:
    """Whether another token in the padding of a prompt, or behind a response, changes the numbers of the response."""
    mask = [0, 1, 1, 1, 1, 0]
    some, same, others = (numbers(module, [pad, 3, 4, 5, 6, pad], mask)[:2] for pad in (0, 0, 7))
    assert torch.equal(some, same)
    return not torch.allclose(some, others)


def knows_the_token(module: Any) -> bool:
    """Whether the number of a token changes with this token."""
    mask = [1, 1, 1, 1, 1, 1]
    some, others = (numbers(module, [2, 3, 4, 5, 6, last], mask)[-1] for last in (1, 7))
    return not torch.allclose(some, others)


def is_of_padding(module: Any) -> bool:
    """Whether a score does not change with the last token alone, but with where the response ends in its columns."""
    short, moved = (
        numbers(module, [2, 3, 4, 5, 6, 0], [1, 1, 1, 1, 1, 0]),
        numbers(module, [2, 3, 4, 5, 6, 7], [1] * 5 + [0]),
    )
    return not torch.allclose(short, moved)


def codes(dataflow: Any, module: Any) -> tuple[str, ...]:
    report: Any = dataflow.check(dims={module.B: 4, module.P: 3, module.R: 3})
    return tuple(code for code in report.codes if code in ("HF355", "HF359"))


@pytest.mark.parametrize("name", UNMASKED)
def test_a_model_without_the_mask_of_prompts_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, UNMASKED[name])
    assert reads_padding(module)
    assert codes(module.step, module) == ("HF355",)
    assert codes(module.shown, module) == ()
    full = program(tmp_path, UNMASKED[name], prompt_mask="response_mask")
    assert codes(full.step, full) == ()


@pytest.mark.parametrize("name", UNMASKED)
def test_a_model_that_takes_no_mask_may_know_padding(tmp_path: Path, name: str) -> None:
    own = MODULE.replace("attention_mask=mask", "mask")
    module = program(tmp_path, UNMASKED[name], template=own)
    assert codes(module.step, module) == ()
    of_transformers = own.replace(
        "self.model, self.head = model, head",
        "self.model = transformers.AutoModelForCausalLM.from_pretrained(model).eval()\n        self.head = head",
    )
    module = program(tmp_path, UNMASKED[name], template=of_transformers)
    assert codes(module.step, module) == ("HF355",)
    configured = of_transformers.replace(
        "AutoModelForCausalLM.from_pretrained(model)", "Own(AutoConfig.from_pretrained(model))"
    )
    module = program(tmp_path, UNMASKED[name], template=configured)
    assert codes(module.step, module) == ()


@pytest.mark.parametrize("name", MASKED)
def test_a_model_with_it_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, MASKED[name])
    assert not reads_padding(module)
    assert codes(module.step, module) == ()


@pytest.mark.parametrize("name", LATE)
def test_values_after_tokens_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, LATE[name])
    assert knows_the_token(module)
    assert codes(module.step, module) == ("HF359",)
    assert codes(module.shown, module) == ()


@pytest.mark.parametrize("name", IN_TIME)
def test_values_before_tokens_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, IN_TIME[name])
    assert not knows_the_token(module)
    assert codes(module.step, module) == ()


@pytest.mark.parametrize("column", ["next_values", "token_rewards", "v_next"])
def test_other_numbers_may_know_their_token(tmp_path: Path, column: str) -> None:
    module = program(tmp_path, LATE["all of the end"], column=column)
    assert "HF359" not in codes(module.step, module)


@pytest.mark.parametrize("name", AFTER)
def test_scores_after_padding_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, AFTER[name].replace(", attention_mask=mask", ""), column="score", dims="B")
    assert is_of_padding(module)
    module = program(tmp_path, AFTER[name], column="score", dims="B")
    assert codes(module.step, module) == ("HF355",)
    assert codes(module.shown, module) == ()


@pytest.mark.parametrize("name", AT_THE_END)
def test_scores_after_the_last_token_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, AT_THE_END[name], column="score", dims="B")
    assert not is_of_padding(module)
    assert codes(module.step, module) == ()
