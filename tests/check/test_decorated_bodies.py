"""Bodies under decorators: read under those that only run them in a context, and left alone under all others."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from hfdsl.check.bodies.role_code import code_of
from hfdsl.graph.spans import definition_span
from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import contextlib
import functools
import torch
import hfdsl as hf

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    prompt: hf.i64[B, P]

class Rollout(hf.Batch):
    ids: hf.i64[B, R]

@contextlib.contextmanager
def timed():
    yield

def reseeded(body):
    @functools.wraps(body)
    def wrapped(*args, **kwargs):
        rollout = body(*args, **kwargs)
        torch.manual_seed(hf.current_call().step)
        return Rollout(ids=torch.randint(0, 1000, rollout.ids.tensor.shape))
    return wrapped

LIKELY = torch.ones(1000)

class Policy(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Embedding(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    {decorator}
    def generate(self, prompts: Prompts) -> Rollout:
        torch.manual_seed(0)
        chances = LIKELY.expand(len(prompts), -1)
        return Rollout(ids=torch.multinomial(chances, 4, replacement=True))

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout) -> None:
        self.model(rollout.ids.tensor % 8).mean().backward()
        self.optimizer.step()

@hf.dataflow
def step(prompts: Prompts, policy: Policy) -> None:
    policy.update(policy.generate(prompts))
"""
CONTEXTS = ("", "@torch.no_grad()", "@torch.inference_mode()", "@torch.autocast('cpu')", "@timed()")


def program(folder: Path, decorator: str) -> Any:
    return loaded(folder, MODULE.format(decorator=decorator))


@pytest.mark.parametrize("decorator", CONTEXTS)
def test_a_body_in_a_context_is_read(tmp_path: Path, decorator: str) -> None:
    report = program(tmp_path, decorator).step.check()
    assert report.codes == ("HF362", "HF784")
    place = report.findings[0].primary.span
    assert "torch.manual_seed(0)" in Path(place.file).read_text(encoding="utf-8").splitlines()[place.line - 1]


def test_a_body_of_which_a_decorator_makes_another_is_not(tmp_path: Path) -> None:
    assert program(tmp_path, "@reseeded").step.check().codes == ("HF784",)


@pytest.mark.parametrize("decorator", [*CONTEXTS, "@reseeded"])
def test_a_decorated_method_is_where_it_is_written(tmp_path: Path, decorator: str) -> None:
    module = program(tmp_path, decorator)
    place = definition_span(module.Policy.generate)
    assert place.file == module.__file__
    assert "def generate" in Path(place.file).read_text(encoding="utf-8").splitlines()[place.line - 1]
    [read] = code_of(module.Policy).functions["generate"]
    assert code_of(module.Policy).is_whole
    assert read.path(ast.parse("torch.multinomial", mode="eval").body) == "torch.multinomial"
