"""Temperatures in bodies: reported where an update learns another distribution than was sampled, and nowhere else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
from dataclasses import dataclass
import math
import torch
import torch.nn.functional as F
import hfdsl as hf
from torch.distributions import Categorical

TEMPERATURE, ONE = 0.5, 1.0

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    prompt: hf.i64[B, P]
class Rollout(hf.Batch):
    ids: hf.i64[B, hf.Add[P, R]]
    advantages: hf.f32[B, R]

@dataclass(frozen=True)
class Config:
    temperature: float = 0.5
    top: int = 8

def at_temperature(logits, temperature):
    return logits / temperature

def selected(logits, ids, temperature=1.0):
    if temperature != 1.0:
        logits = logits / temperature
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)

def sample(logits):
    return torch.multinomial(torch.softmax(logits.float(), dim=-1), num_samples=1)

class Base(hf.Worker):
    def __init__(self, temperature: float = 0.5, config: Config = Config()) -> None:
        self.temperature, self.config = temperature, config
        self.scale = 1.0 / temperature
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

class Policy(Base):
    def __init__(self, temperature: float = 0.5, config: Config = Config()) -> None:
        super().__init__(temperature=temperature, config=config)
        self.half = 0.5

    def chosen(self, ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
        return selected(self.model(ids).logits[:, :-1], ids[:, 1:], temperature)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, temperature: float = 0.5) -> Rollout:
        ids = prompts.prompt.tensor
        logits = self.model(ids).logits[:, -1]
{samples}
        return Rollout(ids=torch.cat([ids, token], 1), advantages=torch.ones(len(ids), 1))

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout) -> None:
        ids, gains = rollout.ids.tensor, rollout.advantages.tensor
        n = gains.shape[1]
{takes}
        self.learned = now.detach()
        loss = {loss}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

@hf.dataflow
def step(prompts: Prompts, policy: Policy) -> None:
    policy.update(policy.generate(prompts))
"""
SURROGATE = "-(now[:, -n:] * gains).mean()"
COLD = {
    "a literal": "token = torch.multinomial((logits / 0.5).softmax(-1), 1)",
    "an attribute": "token = torch.multinomial(torch.softmax(logits / self.temperature, dim=-1), num_samples=1)",
    "an option of the call": "token = sample(logits / temperature)",
    "a configuration": "logits = logits / self.config.temperature\ntoken = sample(logits)",
    "a factor": "token = sample(logits * self.scale)",
    "a constant": "token = sample(logits.div(TEMPERATURE))",
    "in place": "logits = logits.clone()\nlogits.div_(self.temperature)\ntoken = sample(logits)",
    "assigned": "logits = logits.float()\nlogits /= self.temperature\ntoken = sample(logits)",
    "a bound": "token = sample(logits / max(self.temperature, 1e-5))",
    "a function": "token = sample(at_temperature(logits, 0.5))",
    "a branch": "if self.temperature != 1.0:\n    logits = logits / self.temperature\ntoken = sample(logits)",
    "greedy otherwise": "if self.temperature == 0:\n    token = logits.argmax(-1, keepdim=True)\n"
    "else:\n    token = sample(logits / self.temperature)",
    "a distribution": "token = Categorical(logits=logits / self.temperature).sample()[:, None]",
    "chances of a distribution": "token = Categorical(probs=(logits / self.half).softmax(-1)).sample()[:, None]",
    "in a loop": "for _ in range(1):\n    last = logits / self.temperature\n    token = sample(last)",
    "without some tokens": "logits = logits / self.temperature\nlogits[:, 0] = float('-inf')\ntoken = sample(logits)",
}
WARM = {
    "nothing": "token = torch.multinomial(logits.softmax(-1), 1)",
    "a function": "token = sample(logits)",
    "a distribution": "token = Categorical(logits=logits).sample()[:, None]",
    "one": "token = sample(logits / 1.0)",
    "a constant": "token = sample(logits / ONE)",
}
AT_1 = {
    "softmax": "logits = self.model(ids).logits[:, :-1]\n"
    "now = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]",
    "a method": "now = self.chosen(ids)",
    "cross entropy": "logits = self.model(ids).logits[:, :-1]\n"
    "now = -F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction='none').view(len(ids), -1)",
    "a distribution": "now = Categorical(logits=self.model(ids).logits[:, :-1]).log_prob(ids[:, 1:])",
    "a function": "now = selected(self.model(ids).logits[:, :-1], ids[:, 1:])",
    "a difference": "logits = self.model(ids).logits[:, :-1]\n"
    "now = logits.gather(-1, ids[:, 1:, None])[..., 0] - logits.logsumexp(-1)",
    "logarithms": "chances = self.model(ids).logits[:, :-1].softmax(-1)\n"
    "now = torch.log(chances).gather(-1, ids[:, 1:, None])[..., 0]",
}
AT_HALF = {
    "softmax": "logits = self.model(ids).logits[:, :-1] / self.temperature\n"
    "now = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]",
    "a method": "now = self.chosen(ids, temperature=self.temperature)",
    "a configuration": "now = self.chosen(ids, self.config.temperature)",
    "a function": "now = selected(self.model(ids).logits[:, :-1] / 0.5, ids[:, 1:])",
    "in place": "logits = self.model(ids).logits[:, :-1].clone()\nlogits.div_(self.temperature)\n"
    "now = selected(logits, ids[:, 1:])",
    "a distribution": "now = Categorical(logits=self.model(ids).logits[:, :-1] * self.scale).log_prob(ids[:, 1:])",
    "a difference": "logits = self.model(ids).logits[:, :-1].div(self.temperature)\n"
    "chosen = torch.gather(logits, -1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)\n"
    "now = chosen - torch.logsumexp(logits, dim=-1)",
    "normalized by hand": "logits = self.model(ids).logits[:, :-1] / self.temperature\n"
    "now = (logits - logits.logsumexp(-1, keepdim=True)).gather(-1, ids[:, 1:, None])[..., 0]",
}


class Logits(torch.nn.Module):
    """A model whose logits prefer some tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 8)
        torch.nn.init.normal_(self.table.weight, generator=torch.Generator().manual_seed(1))

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table(ids))


def program(folder: Path, samples: str, takes: str, loss: str = SURROGATE, edit: tuple[str, str] = ("", "")) -> Any:
    body = {"samples": samples, "takes": takes}
    indented = {name: textwrap.indent(text, " " * 8) for name, text in body.items()}
    module = loaded(folder, MODULE.format(**indented, loss=loss).replace(*edit))
    module.make_model = Logits
    return module


@contextmanager
def drawn(chances: list[torch.Tensor]) -> Iterator[None]:
    """Keep what tokens are sampled by."""
    multinomial = torch.multinomial

    def kept(given: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        chances.append(given.detach())
        return multinomial(given, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "multinomial", kept)
        yield


def learns_what_it_samples(module: Any) -> bool:
    """Whether the log-probs of an update are those by which its tokens were sampled."""
    torch.manual_seed(0)
    policy, chances = module.Policy(), list[torch.Tensor]()
    with drawn(chances):
        rollout = policy.generate(module.Prompts(prompt=torch.arange(12).view(4, 3) % 8))
    policy.update(rollout)
    token = rollout.ids.tensor[:, -1:]
    sampled = chances[-1].log().gather(-1, token)[:, 0]
    sampled = sampled - chances[-1].sum(-1).log()
    return bool(torch.allclose(policy.learned[:, -1], sampled, atol=1e-4))


def codes(module: Any, place: bool = True) -> tuple[str, ...]:
    pool = module.hf.ResourcePool([1])
    places = module.hf.Deployment(policy=module.hf.place(module.Policy, pool=pool)) if place else None
    report: Any = module.step.check(places, dims={module.B: 4, module.P: 3, module.R: 1})
    return tuple(code for code in report.codes if code == "HF712")


@pytest.mark.parametrize("samples", COLD)
def test_an_update_at_another_temperature_than_its_samples_is_reported(tmp_path: Path, samples: str) -> None:
    names = [*AT_1]
    takes = AT_1[names[len(samples) % len(names)]]
    module = program(tmp_path, COLD[samples], takes)
    if "without some" not in samples:
        assert not learns_what_it_samples(module)
    assert codes(module) == ("HF712",)


@pytest.mark.parametrize("takes", AT_HALF)
def test_an_update_that_divides_what_was_sampled_without_is_reported(tmp_path: Path, takes: str) -> None:
    for samples in WARM.values():
        module = program(tmp_path, samples, AT_HALF[takes])
        assert not learns_what_it_samples(module)
        assert codes(module) == ("HF712",)


@pytest.mark.parametrize("samples", COLD)
def test_an_update_at_the_temperature_of_its_samples_is_not(tmp_path: Path, samples: str) -> None:
    for takes in AT_HALF.values():
        module = program(tmp_path, COLD[samples], takes)
        assert learns_what_it_samples(module) or "without some" in samples
        assert codes(module) == ()


@pytest.mark.parametrize("takes", AT_1)
def test_an_update_without_temperatures_is_not(tmp_path: Path, takes: str) -> None:
    for samples in WARM.values():
        module = program(tmp_path, samples, AT_1[takes])
        assert learns_what_it_samples(module)
        assert codes(module) == ()


UNKNOWN = {
    "a penalty for repetition": (
        "logits = torch.where(logits > 0, logits / 1.2, logits * 1.2)\ntoken = sample(logits)",
        AT_1["softmax"],
    ),
    "a nucleus": (
        "kept = logits.softmax(-1).cumsum(-1) < self.config.top\ntoken = self.pick(logits / 0.5, kept)",
        AT_HALF["softmax"],
    ),
    "values of tokens": (
        "token = sample(logits / 0.5)",
        "values = self.critic(ids).gather(-1, ids[:, :, None])\nnow = self.scorer.log_probs(ids)[:, -n:]",
    ),
    "another term": (
        "token = sample(logits / 0.5)",
        AT_1["softmax"] + "\nnow, imitated = self.scorer.log_probs(ids), now",
    ),
    "temperatures of rows": (
        "token = sample(logits / torch.linspace(0.5, 1.0, len(logits))[:, None])",
        AT_1["softmax"],
    ),
    "a schedule": (
        "self.count = getattr(self, 'count', 0) + 1\ntoken = sample(logits / (1.0 - 0.1 * self.count))",
        AT_1["softmax"],
    ),
    "a processor": ("logits = self.warp(logits)\ntoken = sample(logits)", AT_HALF["softmax"]),
    "a processor of tokens": ("logits = self.warp(ids, scores=logits)\ntoken = sample(logits)", AT_HALF["a method"]),
    "noise": ("token = sample(logits + torch.randn_like(logits))", AT_HALF["softmax"]),
    "two temperatures": (
        "first = sample(logits[:2] / 0.5)\ntoken = torch.cat([first, sample(logits[2:] / 2.0)])",
        AT_1["softmax"],
    ),
    "a branch that is unknown": (
        "if len(ids) > 2:\n    logits = logits / 0.5\ntoken = sample(logits)",
        AT_1["softmax"],
    ),
    "both temperatures": (
        "token = sample(logits / 0.5)",
        AT_HALF["a method"] + "\nat_1 = self.chosen(ids)\nkl = (now - at_1).detach().mean()",
    ),
    "the likeliest": ("token = (logits / 0.5).argmax(-1, keepdim=True)", AT_1["softmax"]),
    "a decoder": ("token = self.decode(logits / 0.5)", AT_1["softmax"]),
    "a model at a temperature": (WARM["nothing"], "now = self.scorer.log_probs(ids, temperature=0.5)[:, -n:]"),
    "a model that is given one": (
        "token = sample(logits / 0.5)",
        "now = selected(self.model(ids, self.temperature).logits[:, :-1], ids[:, 1:])",
    ),
    "a generator": ("token = self.model.generate(ids, temperature=0.5)[:, -1:]", AT_1["softmax"]),
    "greedy": (
        "token = self.model.generate(ids, temperature=0.5, do_sample=False)[:, -1:]",
        AT_1["softmax"],
    ),
    "a generator at 1": ("token = self.model.generate(ids, temperature=1.0, do_sample=True)[:, -1:]", AT_1["a method"]),
    "a greedy engine": ("token = self.engine.generate(ids, SamplingParams(temperature=0.0))", AT_1["softmax"]),
    "an engine at 1": ("token = self.engine.generate(ids, SamplingParams(max_tokens=8))", AT_1["softmax"]),
    "another loss": ("token = sample(logits / 0.5)", "now = self.scores(ids)[:, -n:]"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_said_of_temperatures_that_are_unknown(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, *UNKNOWN[name])) == ()


ENGINES = (
    "token = self.engine.generate(ids, SamplingParams(temperature=0.5, top_p=1.0))",
    (
        "settings = SamplingParams(temperature=self.config.temperature)\n"
        "token = self.engine.generate(ids, sampling_params=settings, use_tqdm=False)"
    ),
    "token = self.model.generate(ids, do_sample=True, temperature=self.temperature, max_new_tokens=1)[:, -1:]",
    (
        "settings = GenerationConfig(do_sample=True, temperature=temperature)\n"
        "token = self.model.generate(input_ids=ids, generation_config=settings)[:, -1:]"
    ),
)


@pytest.mark.parametrize("samples", ENGINES)
def test_what_an_engine_samples_at_a_temperature_is_learned_at_it(tmp_path: Path, samples: str) -> None:
    assert codes(program(tmp_path, samples, AT_1["a method"])) == ("HF712",)
    assert codes(program(tmp_path, samples, AT_HALF["a method"])) == ()


LIBRARIES = {
    "an engine and a trainer with one setting": (
        "token = self.engine.generate(ids, SamplingParams(n=1, temperature=self.temperature, top_p=1.0))",
        (
            "logits = self.model(ids).logits[:, :-1, :]\nlogits = logits / self.temperature\n"
            "now = selected(logits, ids[:, 1:])"
        ),
    ),
    "in place, in micro-batches": (
        "token = self.engine.generate(ids, sampling_params=SamplingParams(temperature=self.config.temperature))",
        (
            "parts = []\nfor part in ids.split(2):\n    logits = self.model(input_ids=part, use_cache=False).logits\n"
            "    logits = logits[:, :-1].float()\n    logits.div_(self.config.temperature)\n"
            "    parts.append(selected(logits, part[:, 1:]))\nnow = torch.cat(parts)"
        ),
    ),
    "row by row": (
        "token = sample(logits / self.temperature)",
        (
            "logits = self.model(ids).logits[:, :-1] / self.temperature\nrows = []\n"
            "for row_logits, row_ids in zip(logits, ids[:, 1:]):\n    row = F.log_softmax(row_logits, dim=-1)\n"
            "    rows.append(row.gather(dim=-1, index=row_ids.unsqueeze(-1)).squeeze(-1))\nnow = torch.stack(rows)"
        ),
    ),
    "a temperature of each row": (
        "token = self.engine.generate(ids, SamplingParams(temperature=temperature))",
        (
            "temperatures = rollout.advantages.tensor[:, :1, None]\n"
            "now = selected(self.model(ids).logits[:, :-1] / temperatures, ids[:, 1:])"
        ),
    ),
    "without gradients for the old ones": (
        "token = sample(logits / self.temperature)",
        (
            "with torch.no_grad():\n    old = self.chosen(ids, self.temperature)\n"
            "now = self.chosen(ids, temperature=self.temperature)\nratio = (now - old).exp()"
        ),
    ),
    "an entropy of the same logits": (
        "token = sample(logits / self.temperature)",
        (
            "logits = self.model(ids).logits[:, :-1] / self.temperature\nchances = logits.softmax(-1)\n"
            "entropy = torch.logsumexp(logits, dim=-1) - torch.sum(chances * logits, dim=-1)\n"
            "now = selected(logits, ids[:, 1:]) + 0.0 * entropy"
        ),
    ),
    "an option of a greedy evaluation": (
        (
            "if temperature > 0:\n    token = sample(logits / temperature)\nelse:\n"
            "    token = logits.argmax(dim=-1, keepdim=True)"
        ),
        "now = self.chosen(ids, self.temperature)",
    ),
    "the nucleus of an evaluation": (
        (
            "logits = logits / self.temperature\nif self.config.top < 8:\n"
            "    kept = logits.topk(self.config.top).indices\n    logits = torch.where(kept, logits, -1e9)\n"
            "token = sample(logits)"
        ),
        "now = self.chosen(ids, self.temperature)",
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_temperatures_as_other_libraries_have_them_are_right(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, *LIBRARIES[name])) == ()


def test_settings_of_an_engine_may_be_made_in_the_constructor(tmp_path: Path) -> None:
    edit = ("self.half = 0.5", "self.half = 0.5\n        self.settings = SamplingParams(temperature=temperature)")
    samples = "token = self.engine.generate(ids, self.settings)"
    assert codes(program(tmp_path, samples, AT_1["softmax"], edit=edit)) == ("HF712",)
    assert codes(program(tmp_path, samples, AT_HALF["softmax"], edit=edit)) == ()


def test_a_model_that_is_made_with_a_temperature_may_divide_by_it(tmp_path: Path) -> None:
    edit = ("self.model = make_model()", "self.model = make_model(temperature=temperature)")
    assert codes(program(tmp_path, COLD["a literal"], AT_1["softmax"], edit=edit)) == ()


def test_a_temperature_that_a_method_sets_is_unknown(tmp_path: Path) -> None:
    setter = "    def cool(self) -> None:\n        self.temperature = 0.9 * self.temperature\n\n    def chosen("
    for samples in (COLD["an attribute"], COLD["a configuration"]):
        module = program(tmp_path, samples, AT_1["softmax"], edit=("    def chosen(", setter))
        assert codes(module) == ()


def test_an_update_without_a_surrogate_may_imitate_at_another_temperature(tmp_path: Path) -> None:
    for loss in ("-now[:, -n:].mean()", "-F.logsigmoid(now[:2, -n:] - now[2:, -n:]).mean()"):
        module = program(tmp_path, COLD["a literal"], AT_1["softmax"], loss=loss)
        assert not learns_what_it_samples(module)
        assert codes(module) == ()


def test_a_temperature_that_a_role_may_be_placed_with_is_unknown(tmp_path: Path) -> None:
    assert codes(program(tmp_path, COLD["an attribute"], AT_1["softmax"]), place=False) == ()
    assert codes(program(tmp_path, COLD["a literal"], AT_1["softmax"]), place=False) == ("HF712",)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_temperature_is_the_one_that_a_role_is_placed_with(tmp_path: Path, temperature: float) -> None:
    module = program(tmp_path, COLD["an attribute"], AT_1["softmax"])
    place = module.hf.place(module.Policy, temperature=temperature, pool=module.hf.ResourcePool([1]))
    report = module.step.check(module.hf.Deployment(policy=place), dims={module.B: 4, module.P: 3, module.R: 1})
    assert ("HF712" in report.codes) is (temperature != 1.0)


LINKED = """
from __future__ import annotations
import torch
import hfdsl as hf
from hfdsl import Dispatch, Execute

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    prompt: hf.i64[B, P]
class Rollout(hf.Batch):
    ids: hf.i64[B, hf.Add[P, R]]
    log_probs: hf.f32[B, R]
class LogProbs(hf.Batch):
    {column}: hf.f32[B, R]
class Advantages(hf.Batch):
    advantages: hf.f32[B, R]

def selected(logits, ids):
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]

class Sampler(hf.Worker):
    def __init__(self, temperature: float) -> None:
        self.model, self.temperature = torch.nn.Embedding(8, 8), temperature
{states}
    @hf.register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout:
        ids = prompts.prompt.tensor
        token = torch.multinomial((self.model(ids[:, -1]) / self.temperature).softmax(-1), 1)
        return Rollout(ids=torch.cat([ids, token], 1), log_probs=torch.zeros(len(ids), 1))

    @hf.register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None: ...

class Scorer(hf.Worker):
    def __init__(self, temperature: float = 1.0) -> None:
        self.model, self.temperature = torch.nn.Embedding(8, 8), temperature

    @hf.register(Dispatch.DP_PROTO)
    @hf.reads("scorer")
    def log_probs(self, rollout: Rollout) -> LogProbs:
        ids = rollout.ids.tensor
        return LogProbs({column}=selected(self.model(ids) / self.temperature, ids)[:, -1:])

class Policy(hf.Worker):
    def __init__(self, temperature: float = 1.0) -> None:
        self.model, self.temperature = torch.nn.Embedding(8, 8), temperature
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
{states}
    @hf.register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, gains: Advantages, other: LogProbs) -> None:
        ids = rollout.ids.tensor
        now = selected(self.model(ids) / self.temperature, ids)[:, -1:]
        ratio = (now - rollout.log_probs.tensor).exp()
        loss = -(ratio * gains.advantages.tensor).mean() + 0.1 * (now - other.{column}.tensor).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @hf.register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[list[float]]:
        return []

@hf.function
def gains(rollout: Rollout) -> Advantages:
    return Advantages(advantages=rollout.ids.tensor[:, -1:].float())

@hf.dataflow
def step(prompts: Prompts, policy: Policy, sampler: Sampler, scorer: Scorer) -> None:
    {sync}
    rollout = sampler.generate(prompts)
    policy.update(rollout, gains(rollout), scorer.log_probs(rollout))
"""
STATES = """
    @staticmethod
    def policy_temperature(temperature: float) -> float:
        return temperature
"""


@pytest.mark.parametrize(
    ("temperatures", "changes", "found"),
    [
        ((0.5, 0.5, 0.5), {}, ()),
        ((1.0, 1.0, 1.0), {}, ()),
        ((0.5, 1.0, 1.0), {}, ("HF712",)),
        ((1.0, 0.5, 0.5), {}, ("HF712",)),
        ((0.5, 0.5, 1.0), {}, ("HF712",)),
        ((0.5, 1.0, 0.5), {}, ("HF712",)),
        ((0.5, 1.0, 1.0), {"states": STATES}, ("HF712",)),
        ((0.5, 0.5, 1.0), {"states": STATES}, ("HF712",)),
        ((0.5, 0.5, 1.0), {"column": "teacher_log_probs"}, ()),
        ((0.5, 0.5, 1.0), {"column": "confidence"}, ()),
        ((0.5, 1.0, 1.0), {"sync": "pass"}, ()),
    ],
)
def test_roles_that_an_update_is_compared_with_have_its_temperature(
    tmp_path: Path, temperatures: tuple[float, float, float], changes: dict[str, str], found: tuple[str, ...]
) -> None:
    parts = {"column": "ref_log_probs", "states": "", "sync": "hf.sync(policy, sampler)", **changes}
    module = loaded(tmp_path, LINKED.format(**parts))
    pool, (sampler, policy, scorer) = module.hf.ResourcePool([1]), temperatures
    places = module.hf.Deployment(
        sampler=module.hf.place(module.Sampler, sampler, pool=pool),
        policy=module.hf.place(module.Policy, policy, pool=pool),
        scorer=module.hf.place(module.Scorer, temperature=scorer, pool=pool),
    )
    report = module.step.check(places, dims={module.B: 4, module.P: 3, module.R: 1})
    assert tuple(code for code in report.codes if code == "HF712") == found
