"""A second check sees what a user has changed since the first."""

from __future__ import annotations

from dataclasses import dataclass

import hfdsl as hf
from tests.check.prelude import Actor, B, Dispatch, Prompts, Rollout, pool, register


@dataclass
class Config:
    micro_batch: int


class Trainer(Actor):
    def __init__(self, config: Config) -> None:
        self.config = config

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % micro_batch == 0")
    def generate(self, prompts: Prompts) -> Rollout:
        raise NotImplementedError


@hf.dataflow
def program(prompts: Prompts, actor: Trainer) -> Rollout:
    return actor.generate(prompts)


def test_another_number_in_the_same_config() -> None:
    config = Config(micro_batch=4)
    deployment = hf.Deployment(actor=hf.place(Trainer, config, pool=pool))
    assert program.check(deployment, dims={B: 8}).findings == ()
    config.micro_batch = 3
    [finding] = program.check(deployment, dims={B: 8})
    assert finding.code == "HF322"
    assert "8 % 3 = 2" in finding.message


def test_another_size() -> None:
    deployment = hf.Deployment(actor=hf.place(Trainer, Config(micro_batch=8), pool=pool))
    assert program.check(deployment, dims={B: 4}).codes == ("HF322",)
    assert program.check(deployment, dims={B: 8}).codes == ()
