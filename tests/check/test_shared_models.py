"""Models that a role keeps under two names: reported where its reference learns with the policy, and nowhere else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import copy
import torch
import torch.nn.functional as F
import hfdsl as hf

class B(hf.Dim): ...
class T(hf.Dim): ...

class Rows(hf.Batch):
    ids: hf.i64[B, T]

def load() -> torch.nn.Module:
    return torch.nn.Embedding(4, 4)

class Policy(hf.Worker):
    def __init__(self, shares: bool = False) -> None:
{body}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def setup(self) -> None:
{setup}

    def reference(self, ids: torch.Tensor) -> torch.Tensor:
        return self.ref_model(ids).log_softmax(-1)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> None:
        ids = rows.ids.tensor
        with torch.no_grad():
            ref = self.reference(ids)
        now = self.model(ids).log_softmax(-1)
        loss = F.kl_div(now, ref, log_target=True, reduction="batchmean") - now[..., 0].mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

@hf.dataflow
def step(rows: Rows, policy: Policy) -> None:
    policy.update(rows)
"""
SAME = {
    "no copy": "self.model = load()\nself.ref_model = self.model",
    "a method that returns its model": "self.model = load()\nself.ref_model = self.model.to('cpu').eval()",
    "one name": "model = load()\nself.model = model\nself.ref_model = model",
    "two names at once": "self.ref_model = self.model = load()",
}
OTHER = {
    "a copy": "self.model = load()\nself.ref_model = copy.deepcopy(self.model).eval()",
    "a second model": "self.model = load()\nself.ref_model = load()",
    "a name that is set again": "model = load()\nself.model = model\nmodel = load()\nself.ref_model = model",
    "copied afterwards": "self.model = load()\nself.ref_model = self.model\nself.ref_model = copy.deepcopy(self.model)",
}


def program(folder: Path, body: str, setup: str = "pass") -> Any:
    parts = {"body": textwrap.indent(body, " " * 8), "setup": textwrap.indent(setup, " " * 8)}
    return loaded(folder, MODULE.format(**parts))


def codes(module: Any) -> tuple[str, ...]:
    report: Any = module.step.check(dims={module.B: 4, module.T: 4})
    return tuple(report.codes)


def reference_learns(module: Any) -> bool:
    """Whether an update changes what the reference says."""
    policy, ids = module.Policy(), torch.tensor([[0, 1, 2, 3]])
    policy.setup()
    before = policy.reference(ids).detach().clone()
    policy.update(module.Rows(ids=ids))
    return not torch.equal(policy.reference(ids), before)


@pytest.mark.parametrize("name", SAME)
def test_a_reference_that_learns_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, SAME[name])
    assert reference_learns(module)
    assert codes(module) == ("HF340",)


@pytest.mark.parametrize("name", OTHER)
def test_a_reference_of_its_own_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, OTHER[name])
    assert not reference_learns(module)
    assert codes(module) == ()


def test_a_copy_that_another_method_makes_is_one(tmp_path: Path) -> None:
    module = program(tmp_path, SAME["no copy"], "self.ref_model = copy.deepcopy(self.model)")
    assert not reference_learns(module)
    assert codes(module) == ()


@pytest.mark.parametrize(
    "body",
    [
        SAME["no copy"].replace("ref_model", "teacher") + "\nself.ref_model = load()",
        "self.model = load()\nself.ref_model = self.model if shares else copy.deepcopy(self.model)",
        SAME["no copy"] + "\nself.adapter = None",
    ],
)
def test_nothing_is_said_of_models_that_may_be_meant(tmp_path: Path, body: str) -> None:
    assert codes(program(tmp_path, body)) == ()
