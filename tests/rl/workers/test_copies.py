"""Copies of a policy: a load that fails leaves no mixture in use, and a copy that differs is found on its rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import HfError, SyncError
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R, Rollout
from hfdsl.rl.models.copies import PolicyCopy
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from tests.rl.engines import fake
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, apart
from tests.rl.workers.test_sharding import NO_GPU

OTHER = replace(tiny.MODEL, seed=9)
SYNC = VerifiedSync("policy", "actor", "sampler")


class Reordered(dict[str, torch.Tensor]):
    """Weights whose third one cannot be read, as after a transfer that failed."""

    def items(self) -> Any:
        for number, (name, weight) in enumerate(super().items()):
            yield name, weight if number != 2 else Torn(weight)


class Torn:
    """A weight with a shape, and no values."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = weight.shape, weight.dtype, weight.device

    def __getattr__(self, name: str) -> Any:
        raise OSError("the transfer failed")

    @classmethod
    def __torch_function__(cls, *args: Any) -> Any:
        raise OSError("the transfer failed")


def copy_of(engine: Any) -> PolicyCopy:
    sampler: Any = w.Sampler(w.SamplerConfig(OTHER, replace(tiny.GENERATION, engine=engine), batching=tiny.FIXED))
    copy: PolicyCopy = sampler.copy
    return copy


@pytest.mark.parametrize("engine", ["plain", "vllm"])
def test_a_load_that_fails_in_the_middle_leaves_nothing_that_can_be_used(engine: Any) -> None:
    new = {name: weight.clone() for name, weight in w.Actor(tiny.ACTOR).weights().items()}
    with fake.installed():
        copy = copy_of(engine)
        before = {name: weight.clone() for name, weight in copy.state().items()}
        with pytest.raises(HfError, match="HF956"):
            copy.load({name: weight for name, weight in new.items() if "norm" not in name})
        assert all(torch.equal(weight, before[name]) for name, weight in copy.state().items())  # refused as a whole
        with pytest.raises(OSError, match="the transfer failed"):
            copy.load(Reordered(new))
        for use in (copy.state, lambda: copy.rollout(tiny.prompts(ROWS), greedy=True)):
            with pytest.raises(
                SyncError, match=r"HF770: the last load of weights failed \(OSError: the transfer failed\)"
            ):
                use()
        copy.load(new)
        assert all(torch.equal(weight, new[name]) for name, weight in copy.state().items())


class Spoiled(w.Sampler):
    """A sampler whose second rank has the rows of a weight in another order after its second load."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        super().load(weights)
        self.loads = getattr(self, "loads", 0) + 1
        if self.loads == 2 and self.rank == 1:
            piece = self.held_weights("policy")["model.model.layers.1.mlp.up_proj.weight"]
            piece.tensor.copy_(piece.tensor.flip(0))


@pytest.mark.parametrize(
    ("train", "roll", "where"),
    [
        (hf.Mesh(tp=2), hf.Mesh(dp=2), "on rank 1"),
        (hf.Mesh(dp=2), hf.Mesh(tp=2), "on ranks 0, 1"),  # whose slices add up to another digest
        (hf.Mesh(tp=2), hf.Mesh(tp=2), r"\[32:64, 0:32\] of 'policy' on rank 1"),
    ],
    ids=str,
)
def test_a_copy_that_differs_is_found_whatever_the_slices(train: hf.Mesh, roll: hf.Mesh, where: str) -> None:
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, tiny.ACTOR, pool=pools[0], mesh=train),
        sampler=hf.place(
            Spoiled, w.SamplerConfig(OTHER, tiny.GENERATION, batching=tiny.FIXED), pool=pools[1], mesh=roll
        ),
        reward=hf.place(w.Verifier, tiny.VERIFIER, pool=pools[0]),
    )
    with apart.compile(deployment, SIZES).launch("local") as running:
        with running.verifying("policy"):
            running.step(tiny.prompts(ROWS))
        assert running.verify("policy").compared == (SYNC,)
        with (
            pytest.raises(SyncError, match=f"'sampler' holds other values of .*up_proj.weight.*{where}"),
            running.verifying(),
        ):
            running.step(tiny.prompts(ROWS))


@hf.dataflow
def sent(prompts: Prompts, actor: w.Actor, sampler: w.Sampler) -> Rollout:
    hf.sync(actor, sampler)
    return sampler.generate(prompts)


@pytest.mark.nightly
def test_what_fsdp_shards_and_tp_slices_is_verified(ray_cluster: Any) -> None:
    mesh, model = hf.Mesh(dp=2, tp=2), replace(tiny.MODEL, config={**tiny.LLAMA, "hidden_size": 24})
    train, roll = hf.ResourcePool([4], use_gpu=False), hf.ResourcePool([1], use_gpu=False)
    training = replace(tiny.TRAINING, sharding="fsdp")
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, replace(tiny.ACTOR, model=model, training=training), pool=train, mesh=mesh),
        sampler=hf.place(w.Sampler, w.SamplerConfig(replace(model, dtype="bfloat16"), tiny.GENERATION), pool=roll),
    )
    sizes: dict[type[hf.Dim], int] = {B: ROWS, P: tiny.PROMPT, R: tiny.RESPONSE}
    with sent.compile(deployment, sizes).launch("ray", worker_env=NO_GPU) as running:
        running.step(tiny.prompts(ROWS))
        assert running.verify("policy").compared == (SYNC,)
