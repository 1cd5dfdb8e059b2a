"""Log-probs of tokens that a model has read: reported where they depend on these tokens' own logits, nowhere else."""

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
import numpy as np
import torch
import torch.nn.functional as F
import hfdsl as hf

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Rollout(hf.Batch):
    ids: hf.i64[B, hf.Add[P, R]]
    prompt: hf.i64[B, P]
    response: hf.i64[B, R]
    attention_mask: hf.bool_[B, hf.Add[P, R]]
    response_mask: hf.bool_[B, R]

class LogProbs(hf.Batch):
    log_probs: hf.f32[B, R]

def selected(logits, tokens):
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

class Model(hf.Worker):
    def __init__(self, model: object = None, temperature: float = 1.0) -> None:
        self.model, self.temperature = model, temperature

    def of_labels(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        log_probs = F.log_softmax(logits.float(), dim=-1)
        return torch.gather(log_probs, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def log_probs(self, rollout: Rollout) -> LogProbs:
        ids, response = rollout.ids.tensor, rollout.response.tensor
        n = response.shape[1]
{body}
        return LogProbs(log_probs=log_probs[:, -n:])

@hf.dataflow
def step(rollout: Rollout, model: Model) -> LogProbs:
    return model.log_probs(rollout)
"""
LOGITS = "logits = self.model(ids).logits\n"
WRONG = {
    "shuffled rows": "parts = []\nfor rows in torch.randperm(len(ids)).split(1):\n"
    "    parts.append(selected(self.model(ids[rows]).logits[:, -n:], ids[rows, -n:]))\nlog_probs = torch.cat(parts)",
    "shuffled rows, selected": "parts = []\nfor rows in torch.randperm(len(ids)).split(1):\n"
    "    part = ids.index_select(0, rows)\n    parts.append(selected(self.model(part).logits, part))\n"
    "log_probs = torch.cat(parts)",
    "rows in a slice of a name": "parts = []\nfor start in range(0, len(ids), 2):\n    rows = slice(start, start + 2)\n"
    "    part = ids[rows]\n    parts.append(selected(self.model(part).logits, part))\nlog_probs = torch.cat(parts)",
    "a dictionary of shuffled rows": "parts, columns = [], {'ids': ids, 'response': response}\n"
    "for rows in np.array_split(np.random.permutation(len(ids)), 2):\n"
    "    part = {name: column[rows] for name, column in columns.items()}\n"
    "    parts.append(selected(self.model(part['ids']).logits, part['ids']))\nlog_probs = torch.cat(parts)",
    "labels of which some are ignored": LOGITS
    + (
        "labels = ids.clone()\nlabels[~rollout.attention_mask.tensor] = -100\n"
        "losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction='none')\n"
        "log_probs = -losses.view(len(ids), -1)"
    ),
    "all": LOGITS + "log_probs = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]",
    "a helper": LOGITS + "log_probs = selected(logits, ids)",
    "a method": "out = self.model(input_ids=ids, attention_mask=rollout.attention_mask.tensor)\n"
    "log_probs = self.of_labels(out.logits / self.temperature, ids)",
    "the response": LOGITS + "log_probs = selected(logits[:, -n:], ids[:, -n:])",
    "the response of its own": LOGITS + "log_probs = selected(logits[:, -n:], ids[:, ids.shape[1] - n :])",
    "joined": "tokens = torch.cat([rollout.prompt.tensor, response], dim=1)\n"
    "log_probs = selected(self.model(tokens).logits[:, -n:], response)",
    "joined by names": "tokens = torch.cat((rollout.prompt.tensor, response), 1)\nwith torch.no_grad():\n"
    "    logits = self.model(tokens, use_cache=False).logits\n"
    "log_probs = selected(logits[:, rollout.prompt.tensor.shape[1] :], response)",
    "without the last": LOGITS + "log_probs = selected(logits[:, :-1], ids[:, :-1])",
    "shifted the wrong way": LOGITS + "log_probs = selected(logits[:, 1:], ids[:, :-1])",
    "cross entropy": LOGITS + "flat = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction='none')\n"
    "log_probs = -flat.view(ids.shape)",
    "a distribution": LOGITS + "log_probs = torch.distributions.Categorical(logits=logits).log_prob(ids)",
    "in parts": "parts = []\nfor part in ids.split(1):\n    logits = self.model(part).logits\n"
    "    parts.append(selected(logits, part))\nlog_probs = torch.cat(parts)",
}
LABELS = (
    "labels = ids.clone()\nlabels[~rollout.attention_mask.tensor] = -100\nlabels[:, :1] = -100\n"
    "losses = F.cross_entropy({logits}.flatten(0, 1), {labels}.flatten(), ignore_index=-100, reduction='none')\n"
    "log_probs = -losses.view(len(ids), -1)"
)
RIGHT = {
    "labels of which some are ignored": LOGITS + LABELS.format(logits="logits[:, :-1]", labels="labels[:, 1:]"),
    "labels in which tokens are put elsewhere": LOGITS
    + "labels = ids.clone()\nlabels[:, :-1] = ids[:, 1:]\nlosses = F.cross_entropy(logits[:, :-1].flatten(0, 1), "
    "labels[:, :-1].flatten(), reduction='none')\nlog_probs = -losses.view(len(ids), -1)",
    "shuffled rows": "parts = []\nfor rows in torch.randperm(len(ids)).split(1):\n"
    "    parts.append(selected(self.model(ids[rows]).logits[:, -n - 1 : -1], ids[rows, -n:]))\n"
    "log_probs = torch.cat(parts)",
    "shuffled rows, shifted": "parts = []\nfor rows in torch.randperm(len(ids)).split(1):\n"
    "    part = ids[rows]\n    parts.append(selected(self.model(part).logits[:, :-1], part[:, 1:]))\n"
    "log_probs = torch.cat(parts)",
    "places, and not rows": "at = torch.arange(ids.shape[1])[-n:]\nflat = ids[0]\n"
    "log_probs = selected(self.model(ids).logits[:, at - 1], ids[:, at])",
    "shifted": LOGITS + "log_probs = selected(logits[:, :-1], ids[:, 1:])",
    "shifted, with dots": LOGITS + "log_probs = selected(logits[..., :-1, :].contiguous(), ids[..., 1:].contiguous())",
    "the response": LOGITS + "log_probs = selected(logits[:, -n - 1 : -1], ids[:, -n:])",
    "the response of its own": LOGITS + "log_probs = selected(logits[:, -n - 1 : -1], response)",
    "a shorter input": "logits = self.model(ids[:, :-1]).logits\nlog_probs = selected(logits, ids[:, 1:])",
    "joined": "tokens = torch.cat([rollout.prompt.tensor, response], dim=1)\n"
    "log_probs = selected(self.model(tokens).logits[:, -n - 1 : -1], response)",
    "cut twice": LOGITS + "before = logits[:, :-1]\nlog_probs = selected(before[:, -n:], ids[:, 1:][:, -n:])",
    "rolled": LOGITS + "log_probs = selected(logits, ids.roll(-1, 1)).roll(1, 1)",
    "labels that are written": LOGITS + "labels = ids.clone()\nlabels[:, :-1] = ids[:, 1:]\n"
    "log_probs = selected(logits, labels).roll(1, 1)",
    "labels that are joined": LOGITS + "labels = torch.cat([ids[:, 1:], ids[:, :1]], 1)\n"
    "log_probs = selected(logits, labels).roll(1, 1)",
    "labels without the prompt": LOGITS + "labels = ids[:, 1:].masked_fill(~rollout.attention_mask.tensor[:, 1:], 0)\n"
    "log_probs = self.of_labels(logits[:, :-1], labels)",
    "cross entropy": LOGITS + "losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction='none')\n"
    "log_probs = -losses",
    "a distribution": LOGITS
    + "log_probs = torch.distributions.Categorical(logits=logits[:, :-1]).log_prob(ids[:, 1:])",
    "padded": LOGITS + "log_probs = F.pad(selected(logits[:, :-1], ids[:, 1:]), (1, 0))",
    "of rows": LOGITS + "rows = []\nfor numbers, row in zip(logits, ids):\n    total = row.size(0)\n"
    "    rows.append(selected(numbers[total - n - 1 : total - 1], row[-n:]))\nlog_probs = torch.stack(rows)",
    "of rows, by two dims": LOGITS + "rows = []\nfor numbers, row in zip(logits, ids):\n"
    "    rows.append(selected(numbers[:-1, :], row[1:]))\nlog_probs = torch.stack(rows)",
    "of one row at a time": "rows = []\nfor row in ids.split(1):\n    numbers = self.model(row).logits.squeeze(0)\n"
    "    rows.append(selected(numbers[:-1], row.squeeze(0)[1:]))\nlog_probs = torch.stack(rows)",
    "positions first": LOGITS + "log_probs = selected(logits.transpose(0, 1)[:-1], ids.transpose(0, 1)[1:]).t()",
    "positions last": LOGITS
    + "log_probs = -F.cross_entropy(logits.transpose(1, 2)[:, :, :-1], ids[:, 1:], reduction='none')",
    "positions by hand": LOGITS
    + "at = torch.arange(ids.shape[1] - 1)\nlog_probs = selected(logits[:, at], ids[:, at + 1])",
}
OTHER = {
    "a model of masked tokens": "hidden = ids.masked_fill(ids % 2 == 0, 1)\nlogits = self.model(hidden).logits\n"
    "log_probs = selected(logits, ids)",
    "a model of other tokens": "logits = self.model(rollout.prompt.tensor).logits\n"
    "log_probs = selected(logits, response)",
    "a table": "log_probs = selected(self.model.table(ids), ids)",
    "the next token": LOGITS + "log_probs = logits[:, -1].log_softmax(-1).gather(-1, ids[:, -1:]).expand(-1, n)",
}


class Bigrams:
    """Logits that prefer the token itself after each token, and 0 as the next one."""

    def __init__(self) -> None:
        self.table = torch.nn.Embedding(8, 8)

    def __call__(self, input_ids: torch.Tensor, **options: object) -> SimpleNamespace:
        return SimpleNamespace(logits=10.0 * torch.nn.functional.one_hot((input_ids + 1) % 8, 8).float())


def program(folder: Path, body: str, methods: str = "") -> Any:
    text = MODULE.format(body=textwrap.indent(body, " " * 8))
    return loaded(
        folder, text.replace("    def of_labels", textwrap.indent(methods, " " * 4) + "\n    def of_labels", 1)
    )


class Network(Bigrams):
    """The same, as a tensor."""

    def __call__(self, input_ids: torch.Tensor, **options: object) -> Any:
        return super().__call__(input_ids).logits


def predicts(module: Any, model: Any = None) -> bool:
    """Whether log-probs of tokens that the model predicts are close to 0."""
    ids = torch.arange(12).view(2, 6) % 8
    mask = torch.ones(2, 6, dtype=torch.bool)
    rows = module.Rollout(
        ids=ids, prompt=ids[:, :3], response=ids[:, 3:], attention_mask=mask, response_mask=mask[:, 3:]
    )
    return bool((module.step(rows, module.Model(model or Bigrams())).log_probs.tensor > -0.1).all())


def codes(module: Any) -> tuple[str, ...]:
    report: Any = module.step.check(dims={module.B: 4, module.P: 3, module.R: 3})
    return tuple(code for code in report.codes if code == "HF359")


@pytest.mark.parametrize("name", WRONG)
def test_log_probs_of_tokens_that_were_read_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WRONG[name])
    assert not predicts(module)
    assert codes(module) == ("HF359",)


@pytest.mark.parametrize("name", RIGHT)
def test_log_probs_of_the_next_tokens_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert predicts(module)
    assert codes(module) == ()


@pytest.mark.parametrize("name", OTHER)
def test_nothing_is_said_of_other_models(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, OTHER[name])) == ()


SAMPLES = {
    "a loop": """
def sampled(self, ids, count):
    for _ in range(count):
        logits = self.model(ids)[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
    return ids
""",
    "two steps": """
def next_token(self, ids):
    logits = self.model(ids, use_cache=False)
    return logits[:, -1, :].argmax(-1)
""",
    "a method": """
def logits_of(self, ids):
    return self.model(ids)

def next_token(self, ids):
    return torch.distributions.Categorical(logits=self.logits_of(ids)[..., -1, :] / self.temperature).sample()
""",
}
NO_SAMPLES = {
    "the last value": "def value(self, ids):\n    return self.model(ids)[:, -1]\n",
    "all positions": "def best(self, ids):\n    return self.model(ids).argmax(-1)\n",
    "another model": "def best(self, ids):\n    return self.draft(ids)[:, -1].argmax(-1)\n",
    "the last of another one": (
        "def best(self, ids, values):\n    logits = self.model(ids)\n    logits = self.draft(logits)\n"
        "    return logits[:, -1].argmax(-1)\n"
    ),
    "nothing": "",
}


def of_tensors(body: str, name: str) -> str:
    """The same body with a model that gives a tensor, by a method if it samples by one."""
    model = "self.logits_of(" if name == "a method" else "self.model("
    return body.replace(").logits", ")").replace("out.logits", "out").replace("self.model(", model)


OF_IDS = [name for name in WRONG if "use_cache" not in WRONG[name] and "attention_mask" not in WRONG[name]]
"""Programs that give a model nothing but tokens."""


@pytest.mark.parametrize("sampler", SAMPLES)
@pytest.mark.parametrize("name", OF_IDS)
def test_a_model_that_samples_the_next_token_gives_logits_of_it(tmp_path: Path, name: str, sampler: str) -> None:
    module = program(tmp_path, of_tensors(WRONG[name], sampler), SAMPLES[sampler])
    assert not predicts(module, Network())
    assert codes(module) == ("HF359",)


@pytest.mark.parametrize("sampler", SAMPLES)
@pytest.mark.parametrize("name", RIGHT)
def test_logits_of_the_next_tokens_of_such_a_model_are_right(tmp_path: Path, name: str, sampler: str) -> None:
    module = program(tmp_path, of_tensors(RIGHT[name], sampler), SAMPLES[sampler])
    assert predicts(module, Network())
    assert codes(module) == ()


@pytest.mark.parametrize("sampler", NO_SAMPLES)
@pytest.mark.parametrize("name", ["all", "the response", "cross entropy"])
def test_a_model_that_gives_a_tensor_may_be_any(tmp_path: Path, name: str, sampler: str) -> None:
    assert codes(program(tmp_path, of_tensors(WRONG[name], ""), NO_SAMPLES[sampler])) == ()


SHIFTS_ITSELF = """
def logits_of(self, ids):
    inputs = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1)
    return self.model(inputs)

def next_token(self, ids):
    return self.model(ids)[:, -1].argmax(-1)
"""


@pytest.mark.parametrize("name", ["all", "the response", "cross entropy", "in parts"])
def test_a_method_that_shifts_by_itself_is_right(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, of_tensors(WRONG[name], "a method"), SHIFTS_ITSELF)
    assert codes(module) == ()
