"""Updates of roles that declare no states: rules on losses know them by the optimizer steps that they take."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hfdsl.check.dependences import declares_training, training_calls
from hfdsl.check.program import Program
from hfdsl.graph.infer import infer
from tests.check import preference_programs, test_critic_losses
from tests.check.loading import loaded

DECLARED = re.compile(r"^ *@hf\.(reads|writes)\(.*\)\n", re.MULTILINE)

PREFERENCES = {
    "F.logsigmoid(chosen - rejected).mean()": ("HF368",),
    "-F.logsigmoid(chosen - rejected).mean()": (),
}
CRITICS = {
    ("now", "torch.min(plain, clipped)", "returns"): ("HF946",),
    ("now", "torch.max(plain, clipped)", "returns"): (),
    ("now", "torch.max(plain, clipped)", "gains"): ("HF351",),
}


def codes(module: Any) -> tuple[str, ...]:
    report: Any = module.step.check(dims={module.B: 4, module.R: 4} if hasattr(module, "R") else {module.B: 4})
    return tuple(report.codes)


@pytest.mark.parametrize("loss", PREFERENCES)
def test_losses_of_pairs_are_read_without_declarations(tmp_path: Path, loss: str) -> None:
    body = (
        "chosen, rejected = self.log_probs(chosen_ids, chosen_mask), self.log_probs(rejected_ids, rejected_mask)\n"
        f"loss = {loss}\nself.take_step(loss)"
    )
    text = DECLARED.sub("", preference_programs.MODULE)
    text = text.format(body=textwrap.indent(body, " " * 8), role="Policy", options="")
    assert codes(loaded(tmp_path, text)) == PREFERENCES[loss]


@pytest.mark.parametrize("parts", CRITICS)
def test_losses_of_critics_are_read_without_declarations(tmp_path: Path, parts: tuple[str, str, str]) -> None:
    now, extreme, target = parts
    body = (
        f"held = old + ({now} - old).clamp(-eps, eps)\n"
        f"plain, clipped = ({now} - {target}) ** 2, (held - {target}) ** 2\nloss = ({extreme} * mask).sum()"
    )
    text = DECLARED.sub("", test_critic_losses.MODULE)
    options = {"extreme": "max", "target": "returns", "old": "values.values"}
    assert codes(loaded(tmp_path, text.format(body=textwrap.indent(body, " " * 8), **options))) == CRITICS[parts]


STEPS = """
import torch
import hfdsl as hf

class B(hf.Dim): ...

class Rows(hf.Batch):
    x: hf.f32[B]

class Base(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def take_step(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

class Policy(Base):
    @hf.register(hf.Dispatch.DP_PROTO)
    def update(self, rows: Rows) -> None:
        self.take_step(self.model(rows.x.tensor[:, None]).sum())

    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows:
        noise = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([noise], lr=0.1)
        (noise + self.model(rows.x.tensor[:, None])).sum().backward()
        optimizer.step()
        return rows

class Abstract(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def update(self, rows: Rows) -> None: ...

    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows: ...

class Placed(Abstract, Policy):
    update, score = Policy.update, Policy.score

@hf.dataflow
def step(rows: Rows, policy: {role}) -> Rows:
    policy.update(rows)
    return policy.score(rows)

deployment = hf.Deployment(policy=hf.place({placed}, pool=hf.ResourcePool([1])))
"""


@pytest.mark.parametrize(("role", "placed"), [("Policy", "Policy"), ("Abstract", "Placed")])
def test_a_call_trains_if_its_method_steps_an_optimizer_of_its_role(tmp_path: Path, role: str, placed: str) -> None:
    module = loaded(tmp_path, STEPS.format(role=role, placed=placed))
    graph = module.step.trace()
    program = Program(graph, infer(graph), module.deployment)
    assert [node.label for node in training_calls(program)] == ["policy.update"]
    assert not any(map(declares_training, program.graph.calls))
