"""An actor that samples with fewer ranks than it learns with says what it says without, and holds no byte twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.protocols.collectives import recorded_collectives
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R, Rollout
from hfdsl.types.numbers import byte_amount
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, everything, numbers, policy, tensors
from tests.rl.workers.test_sharding import NO_GPU
from tests.rl.workers.test_tensor_parallel import BY_TOKENS, MODELS, ONE, TWO, alike, model, ran, roles

FOUR_HEADS = replace(tiny.MODEL, config={**tiny.LLAMA, "num_key_value_heads": 4})


def same_bits(unfolded: Any, folded: Any) -> None:
    (first, weights), (second, others) = unfolded, folded
    for ours, actual in zip((*first[:4], *first[4]), (*second[:4], *second[4]), strict=True):
        columns = tensors(actual)
        assert all(torch.equal(column, columns[name]) for name, column in tensors(ours).items())
    for ours, actual in zip((*first[5], *first[6]), (*second[5], *second[6]), strict=True):
        assert numbers(ours) == numbers(actual)
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())


@pytest.mark.nightly_besides("qwen3")
@pytest.mark.parametrize("name", MODELS)
def test_one_rank_samples_what_two_sample_together(name: str) -> None:
    """The same tokens, and as log-probs and updates are those of the slices that learn, the same bits of all."""
    folded = ran(hf.Mesh(tp=2, gen_tp=1), name, tiny.FIXED)
    same_bits(ran(TWO, name, tiny.FIXED), folded)
    alike(ran(ONE, name, tiny.FIXED), folded)


@pytest.mark.nightly
def test_rows_of_unlike_lengths_on_all_axes() -> None:
    alike(
        ran(ONE, "llama", tiny.FIXED), ran(hf.Mesh(dp=2, tp=2, gen_tp=1, order=("tp", "dp", "pp")), "llama", BY_TOKENS)
    )


class Counted(w.Actor):
    """An actor that counts what it receives and holds while it samples."""

    @hf.register(hf.Dispatch.THREE_D_ALL_MICRO_DP)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout:
        slices, rank = self.sampling.slices, self.rank
        assert slices is not None
        before = {name: parameter.clone() for name, parameter in self.policy.named_parameters()}
        endpoint: Any = (self._hf_rank.collectives, rank)
        with recorded_collectives(endpoint) as results, slices.gathered() as sampler:
            gathered = [value for _, value in results]
            storages = [tensor.untyped_storage() for policy in (self.policy, sampler) for tensor in policy.parameters()]
            self.generation_bytes = sum(parameter.nbytes for parameter in sampler.parameters())
            self.held_bytes = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        own = self.axis("micro_dp").rank
        self.received_bytes = sum(part.nbytes for parts in gathered for i, part in enumerate(parts) if i != own)
        self.sliced_bytes = sum(parts[own].nbytes for parts in gathered)
        for name, parameter in self.policy.named_parameters():
            assert torch.equal(parameter, before[name])
            assert parameter.is_contiguous()
            assert parameter.untyped_storage().nbytes() == parameter.nbytes
        assert all(parameter.is_meta for parameter in sampler.parameters())
        self.sampled_rows = len(prompts)
        return super().generate(prompts, greedy=greedy)

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def counts(self) -> tuple[int, ...]:
        return self.sampled_rows, self.sliced_bytes, self.received_bytes, self.generation_bytes, self.held_bytes


@hf.dataflow
def sampled(prompts: Prompts, actor: w.Actor) -> Rollout:
    return actor.generate(prompts)


@hf.dataflow
def counted(actor: Counted) -> hf.PerRank[tuple[int, ...]]:
    return actor.counts()


def placed(role: type[w.Actor], mesh: hf.Mesh) -> hf.Deployment:
    pool = hf.ResourcePool([mesh.world_size], use_gpu=False)
    return hf.Deployment(actor=hf.place(role, replace(tiny.ACTOR, model=FOUR_HEADS), pool=pool, mesh=mesh))


@pytest.mark.parametrize("mesh", [hf.Mesh(tp=4, gen_tp=2), hf.Mesh(tp=4, gen_tp=1)], ids=str)
def test_a_rank_receives_the_rest_of_its_generation_slice_and_holds_nothing_else(mesh: hf.Mesh) -> None:
    """(d_g - 1)/(t p) M are received, of what is sliced at all."""
    deployment = placed(Counted, mesh)
    plan = sampled.compile(deployment, SIZES)
    [planned] = plan.syncs
    with plan.launch("local", seed=3) as running:
        rollout = tensors(running.step(tiny.prompts(ROWS)))
        counts = running.also(counted.compile(deployment)).step()
    for rows, sliced, received, generation, held in counts:
        assert rows * mesh.micro_dp_size == ROWS
        assert received == (mesh.micro_dp_size - 1) * sliced > 0
        assert held == generation  # the slices that learn lie in those that sample
        assert (planned.needed, planned.received, planned.redundant) == (generation, received, 0)
        assert (planned.gathers, planned.within) == (True, True)
    with sampled.compile(placed(w.Actor, hf.Mesh(tp=4)), SIZES).launch("local", seed=3) as running:
        unfolded = tensors(running.step(tiny.prompts(ROWS)))
    assert all(torch.equal(column, rollout[name]) for name, column in unfolded.items())


@pytest.mark.parametrize(
    ("mesh", "sharding", "engine", "says"),
    [
        (hf.Mesh(tp=4, gen_tp=2), "none", "auto", "within actor.generate: a rank needs up to {needs}, receives up to"),
        (hf.Mesh(dp=2, tp=4, gen_tp=2), "fsdp", "auto", "within actor.generate: a rank needs up to {needs}, beside"),
        (hf.Mesh(tp=4), "none", "auto", None),
        (hf.Mesh(tp=4, gen_tp=2), "none", "vllm", None),
    ],
    ids=str,
)
def test_a_plan_has_a_line_for_it_and_counts_its_memory(
    mesh: hf.Mesh, sharding: Any, engine: Any, says: str | None
) -> None:
    training = replace(tiny.TRAINING, sharding=sharding)
    generation = replace(tiny.GENERATION, engine=engine)
    config = replace(tiny.ACTOR, model=FOUR_HEADS, training=training, generation=generation)
    deployment = hf.Deployment(actor=hf.place(w.Actor, config, pool=hf.ResourcePool([mesh.world_size]), mesh=mesh))
    plan = sampled.compile(deployment, {**SIZES, B: 8})
    assert (says is None) == (plan.syncs == ())
    assert ("generation slices" in str(plan)) == (says is not None)
    if says is not None:
        [sync] = plan.syncs
        assert says.format(needs=byte_amount(sync.needed)) in str(plan)
        [added] = [line for line in str(plan).splitlines() if "generation slices" in line]
        own = sync.received if sharding == "none" else sync.needed
        assert f"generation slices {byte_amount(own)}, arriving weights {byte_amount(sync.peak - sync.needed)}" in added


@pytest.mark.nightly
def test_what_fsdp_shards_and_tp_slices_is_gathered_over_both(ray_cluster: Any) -> None:
    mesh = hf.Mesh(dp=2, tp=2, gen_tp=1)
    deployment = roles(mesh, "qwen3", BY_TOKENS, "fsdp")
    with everything.compile(deployment, SIZES).launch("ray", seed=3, worker_env=NO_GPU) as running:
        folded = running.step(tiny.prompts(ROWS)), running.also(policy.compile(deployment)).step()
    alike(ran(ONE, "qwen3", tiny.FIXED), folded)
    unfolded = roles(hf.Mesh(dp=2, tp=2), "qwen3", BY_TOKENS, "fsdp")
    with everything.compile(unfolded, SIZES).launch("ray", seed=3, worker_env=NO_GPU) as running:
        same_bits((running.step(tiny.prompts(ROWS)), running.also(policy.compile(unfolded)).step()), folded)


def test_rows_have_to_go_to_all_replicas() -> None:
    config = replace(tiny.ACTOR, model=model("llama"))
    pool = hf.ResourcePool([2], use_gpu=False)
    deployment = hf.Deployment(actor=hf.place(w.Actor, config, pool=pool, mesh=hf.Mesh(tp=2, gen_tp=1)))
    (finding,) = sampled.check(deployment, {B: 5, P: tiny.PROMPT, R: tiny.RESPONSE}).errors
    assert finding.code == "HF310"
    assert "2 chunks of 3D_ALL_MICRO_DP on Mesh(pp=1 dp=1 tp=2 gen_tp=1)" in finding.message


def test_a_sampler_on_a_mesh_of_replicas_samples_the_same_rows() -> None:
    config = w.SamplerConfig(FOUR_HEADS, tiny.GENERATION, batching=tiny.FIXED)

    def rows(mesh: hf.Mesh) -> dict[str, torch.Tensor]:
        pool = hf.ResourcePool([mesh.world_size], use_gpu=False)
        deployment = hf.Deployment(sampler=hf.place(w.Sampler, config, pool=pool, mesh=mesh))
        with by_sampler.compile(deployment, SIZES).launch("local", seed=3) as running:
            return tensors(running.step(tiny.prompts(ROWS)))

    expected = rows(hf.Mesh(dp=2, tp=2))
    replicas = rows(hf.Mesh(tp=4, gen_tp=2))
    assert all(torch.equal(column, replicas[name]) for name, column in expected.items())


@hf.dataflow
def by_sampler(prompts: Prompts, sampler: w.Sampler) -> Rollout:
    return sampler.generate(prompts)
