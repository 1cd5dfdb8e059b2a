"""The law of declared layouts: true ones hold, and every wrong one is found."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import DefinitionError, HfWarning
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.layouts import Layout, Only, Parameter, Replicas, Slices, Tied
from hfdsl.rl.batches import Prompts as Questions
from hfdsl.rl.batches import Rollout
from hfdsl.rl.workers import Actor, ActorConfig, GenerationConfig, Sampler, SamplerConfig, TrainingConfig
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.runtime.weights.held_parts import ComputedPart
from hfdsl.testing import BrokenLayoutError, check_layout, check_layouts
from tests.protocols.layout_cases import composed, cut_lists, local_tensor, meshes, parameters
from tests.runtime import resharding_programs as p

SIZES = {"model_type": "llama", "pad_token_id": 0, "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32}
SIZES |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}


@given(st.data())
def test_what_frameworks_hold_is_what_layouts_say(data: st.DataObject) -> None:
    mesh, parameter = data.draw(meshes(most=8)), data.draw(parameters())
    cuts = data.draw(cut_lists(parameter, mesh))
    whole = torch.arange(parameter.bytes // parameter.item_bytes).reshape(parameter.shape)
    held = [local_tensor(whole, cuts, mesh, rank) for rank in range(mesh.world_size)]
    parts = [{} if part is None else {"weight": part} for part in held]
    check_layout(composed(cuts), mesh, {"weight": whole}, parts)
    rank = data.draw(st.sampled_from([rank for rank, part in enumerate(held) if part is not None]))
    changed = parts[rank]["weight"].clone()
    place = tuple(data.draw(st.integers(0, size - 1)) for size in changed.shape)
    changed[place] += 1
    parts[rank] = {"weight": changed}
    with pytest.raises(BrokenLayoutError, match=rf"rank {rank} .*is {changed[place]} instead of {changed[place] - 1}"):
        check_layout(composed(cuts), mesh, {"weight": whole}, parts)


@pytest.mark.parametrize(
    ("layout", "parts", "problem"),
    [
        (Slices(0), [[0, 1], [2, 3], [0]], "2 ranks, and 3 are held against it"),
        (Slices(0), [[0, 1], [2, 3, 4]], r"rank 1 .* is of shape \(3,\), and its boxes \[2:4\] are of \(2,\)"),
        (Slices(0), [[0, 1], None], r"rank 1 .* is not on it, and \[2:4\] of it should be"),
        (Only(axis="tp", at=(0,)), [[0, 1, 2, 3], [0]], "rank 1 .* is on it, and in no box of its layout"),
        (Slices(0), [[0, 1], [3, 2]], r"'a'\[0\] is 3 instead of 2, from \[2\] of the whole"),
    ],
)
def test_parts_of_another_layout(layout: Layout, parts: list[list[int] | None], problem: str) -> None:
    held = [{} if part is None else {"a": part} for part in parts]
    with pytest.raises(BrokenLayoutError, match=problem):
        check_layout(layout, hf.Mesh(tp=2), {"a": [0, 1, 2, 3]}, held)


def test_pad_rows_are_no_part_of_what_a_rank_holds() -> None:
    layout, whole = Slices(0, padding=4), {"embedding": [0, 1, 2, 3, 4]}
    check_layout(layout, hf.Mesh(tp=2), whole, [{"embedding": [0, 1, 2, 3]}, {"embedding": [4]}])
    with pytest.raises(
        BrokenLayoutError, match=r"'embedding' is of shape \(4,\), and its boxes \[4:5\] without pad rows are of \(1,\)"
    ):
        check_layout(layout, hf.Mesh(tp=2), whole, [{"embedding": [0, 1, 2, 3]}, {"embedding": [4, -1, -1, -1]}])


def test_a_parameter_without_elements_has_its_dims() -> None:
    """Of which nested lists tell only the first."""
    weight, layout = torch.zeros(0, 4), Slices(1)
    check_layout(layout, hf.Mesh(tp=2), {"weight": weight}, [{"weight": weight[:, :2]}, {}])
    with pytest.raises(BrokenLayoutError, match="is on it, and in no box"):
        check_layout(layout, hf.Mesh(tp=2), {"weight": weight}, [{}, {"weight": torch.zeros(1, 2)}])


def test_a_tied_parameter_may_be_held_under_the_name_of_the_stored_one() -> None:
    whole = {"embedding": [1, 2], "head": [1, 2]}
    check_layout(Tied(Replicas(), {"head": "embedding"}), hf.Mesh(), whole, [{"embedding": [1, 2]}])


class B(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B]


class Trainer(hf.Worker):
    qkv = tuple(range(8))

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, list[int]]:
        return {"qkv": list(self.qkv)}


class Engine(hf.Worker):
    """Declares its fused rows as blocks; ``blocks`` are those that it really cuts."""

    def __init__(self, *blocks: int) -> None:
        self.blocks, self.part = blocks, list[int]()

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def score(self, rows: Rows) -> Rows:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Slices(0, blocks=(4, 2, 2)))
    def load(self, weights: dict[str, list[int]]) -> None:
        rows, start = weights["qkv"], 0
        for block in self.blocks:
            half = block // 2
            self.part += rows[start + self.rank * half : start + (self.rank + 1) * half]
            start += block

    def held_weights(self, state: str) -> dict[str, list[int]]:
        return {"qkv": self.part}


@hf.dataflow
def flow(rows: Rows, trainer: Trainer, engine: Engine) -> None:
    trainer.update(engine.score(rows))
    hf.sync(trainer, engine)


class Unheld(hf.Worker):
    """Does not say what it has."""

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def score(self, rows: Rows) -> Rows:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, list[int]]) -> None: ...


@hf.dataflow
def unheld(rows: Rows, trainer: Trainer, engine: Unheld) -> None:
    trainer.update(engine.score(rows))
    hf.sync(trainer, engine)


def planned(*blocks: int) -> Any:
    trainer = hf.place(Trainer, pool=hf.ResourcePool([1], name="train"))
    engine = hf.place(Engine, *blocks, pool=hf.ResourcePool([2], name="engines"), mesh=hf.Mesh(tp=2))
    return flow.compile(hf.Deployment(trainer=trainer, engine=engine), {B: 4})


def test_a_running_role_is_held_against_its_declaration() -> None:
    check_layouts(planned(4, 2, 2))
    with pytest.raises(BrokenLayoutError, match=r"'engine', rank 0 .*'qkv'\[2\] is 2 instead of 4, from \[4\]"):
        check_layouts(planned(8))


class Parts(p.Engine):
    """Loads its part, and says what it has; ``turned``, its rows in another order."""

    turned = False

    def held_weights(self, state: str) -> dict[str, Any]:
        return {name: part.flip(0) if self.turned else part for name, part in self.table.items()}


class Turned(Parts):
    turned = True


class Apart(p.Trainer):
    """Whose second replica has other values."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=p.declared)
    def weights(self) -> dict[str, Any]:
        return {name: part + (self.rank == 1) for name, part in self.table.items()}


class Telling(p.Trainer):
    """Says what it has, in the parts that it exports; or that alone, as a sync sends nothing else."""

    exported = True

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=p.declared)
    def weights(self) -> dict[str, Any]:
        return self.table if self.exported else {}

    def held_weights(self, state: str) -> dict[str, Any]:
        return self.table


class Silent(Telling):
    exported = False


class Diverged(p.Trainer):
    """Has no numbers among its weights."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=p.declared)
    def weights(self) -> dict[str, Any]:
        return {name: part.fill_(float("nan")) for name, part in self.table.items()}


class Listing(p.Trainer):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=p.declared)
    def weights(self) -> dict[str, Any]:
        return {name: part.tolist() for name, part in self.table.items()}


class Empty(p.Engine):
    def held_weights(self, state: str) -> Any:
        return None


@pytest.mark.parametrize(
    ("actor", "engine", "problem"),
    [
        (p.Trainer, Parts, None),
        (Telling, Parts, None),
        (Silent, Parts, None),
        (Diverged, Parts, None),
        (Listing, Parts, r"'actor', rank 0 .*: exports 'embedding' of type list, and a sync sends parts of tensors"),
        (p.Trainer, Empty, r"'engine', rank 0 .*: held_weights\('policy'\) gives None, expected a dict of its parts"),
        (Telling, Turned, r"'engine', rank 0 .*'embedding'\[0, 0\] is .* instead of"),
        (p.Trainer, Turned, r"'engine', rank 0 .*'embedding'\[0, 0\] is .* instead of"),
        (p.Wrong, Parts, r"'actor', rank 1 .*exports one of \(7, 4\) of 'qkv', and its boxes .* are of \(8, 4\)"),
        (Apart, Parts, r"'actor', rank 1 .*'norm'\[0:4\] differs from another rank's"),
    ],
)
def test_roles_that_export_parts_are_held_too(actor: Any, engine: Any, problem: str | None) -> None:
    train, roll = (hf.ResourcePool([size], use_gpu=False) for size in (2, 4))
    deployment = hf.Deployment(
        actor=hf.place(actor, p.TENSOR, pool=train, mesh=hf.Mesh(tp=2)),
        engine=hf.place(engine, p.TENSOR, pool=roll, mesh=hf.Mesh(tp=4)),
    )
    plan = p.synced.compile(deployment)
    if problem is None:
        check_layouts(plan)
        return
    with pytest.raises(BrokenLayoutError, match=problem):
        check_layouts(plan)


@hf.dataflow
def two_engines(told: p.Engine, silent: p.Engine, actor: p.Trainer) -> None:
    hf.sync(actor, told)
    hf.sync(actor, silent)


def test_a_role_that_does_not_say_what_it_holds_is_reported() -> None:
    def plan(told: type[p.Engine], silent: type[p.Engine]) -> Any:
        pools = {name: hf.ResourcePool([2], use_gpu=False, name=name) for name in ("actor", "told", "silent")}
        roles: dict[str, Any] = {"actor": p.Trainer, "told": told, "silent": silent}
        places = {name: hf.place(roles[name], p.TENSOR, pool=pools[name], mesh=hf.Mesh(tp=2)) for name in roles}
        return two_engines.compile(hf.Deployment(**places))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_layouts(plan(Parts, Parts))
    with pytest.warns(HfWarning, match="HF922: check_layouts compared nothing that 'silent' loads by its layout"):
        check_layouts(plan(Parts, p.Engine))
    with pytest.raises(BrokenLayoutError, match="'told'"):
        check_layouts(plan(Turned, p.Engine))


FUSED = Parameter("qkv", (8, 1), "float32")
ROWS = torch.arange(8.0).view(8, 1)
GROUPS = Slices(0, blocks=(4, 2, 2), interleaved=2)


class Grouped(hf.Worker):
    """Keeps queries, keys and values of a group, and then those of the next one, whatever it declares."""

    def __init__(self, layout: Layout) -> None: ...

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": [FUSED]}

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout: layout)
    def weights(self) -> dict[str, Any]:
        rows = ROWS[[0, 1, 4, 6, 2, 3, 5, 7]]
        return {"qkv": rows.chunk(self.mesh.tp)[self.coordinates.tp]}


class Blocks(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Slices(0, blocks=(4, 2, 2)))
    def load(self, weights: dict[str, Any]) -> None:
        self.held = weights

    def held_weights(self, state: str) -> dict[str, Any]:
        return self.held


@hf.dataflow
def fused(trainer: Grouped, engine: Blocks) -> None:
    hf.sync(trainer, engine)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("trainers", [1, 2])
def test_an_order_that_a_role_does_not_declare_shows_beside_the_right_weights(trainers: int, tp: int) -> None:
    def check(layout: Layout, **weights: Any) -> None:
        pools = [hf.ResourcePool([size], name=name) for size, name in ((trainers, "train"), (tp, "engines"))]
        trainer = hf.place(Grouped, layout, pool=pools[0], mesh=hf.Mesh(tp=trainers))
        engine = hf.place(Blocks, pool=pools[1], mesh=hf.Mesh(tp=tp))
        check_layouts(fused.compile(hf.Deployment(trainer=trainer, engine=engine)), **weights)

    check(GROUPS)
    check(GROUPS, weights={"policy": {"qkv": ROWS, "head": torch.zeros(4)}})
    plain = Slices(0, blocks=(4, 2, 2))
    check(plain)  # the parts are another model's, which the engine has, too
    if trainers == 2:  # a group for each
        check(plain, weights={"policy": {"qkv": ROWS}})
        return
    with pytest.raises(
        BrokenLayoutError, match=r"'trainer', rank 0 .*'qkv'\[2, 0\] is 4.0 instead of 2.0, from \[2, 0\]"
    ):
        check(plain, weights={"policy": {"qkv": ROWS}})


def test_right_weights_that_no_role_exports_are_compared_with_nothing() -> None:
    trainer = hf.place(Trainer, pool=hf.ResourcePool([1], name="train"))
    engine = hf.place(Unheld, pool=hf.ResourcePool([2], name="engines"))
    plan = unheld.compile(hf.Deployment(trainer=trainer, engine=engine), {B: 4})
    check_layouts(plan, weights={"policy": {"qkv": list(range(8))}})
    with pytest.raises(BrokenLayoutError, match=r"'trainer', rank 0 .*'qkv'\[0\] is 0 instead of 9"):
        check_layouts(plan, weights={"policy": {"qkv": [9] * 8}})
    for others in ({"policy": {"head": [1]}}, {"value": {"qkv": [1]}}, {}):
        with pytest.raises(DefinitionError, match="HF922"):
            check_layouts(plan, weights=others)
    both: dict[str, dict[str, Any]] = {"policy": {"qkv": list(range(8))}, "value": {"qkv": [1]}}
    with pytest.raises(
        DefinitionError, match=r"no role of a sync in 'unheld' exports a weight of 'value' that weights= has"
    ):
        check_layouts(plan, weights=both)


@pytest.mark.parametrize(
    ("layout", "whole", "held", "problem"),
    [
        ("tp", {"w": [1, 2]}, [{}, {}], "HF921: check_layout: layout takes a layout, such as Slices(0), got 'tp'"),
        (Slices(0), {"w": [1, 2]}, [[1], [2]], "HF921: check_layout: held takes values by name, as in "),
        (Slices(0), {"w": [1, 2]}, {}, "HF921: check_layout: held takes the tensors of each rank, in a list, got {}"),
        (Slices(0), [1, 2], [{}, {}], "HF921: check_layout: whole takes values by name, as in "),
        (Slices(0), {}, [{}, {}], "HF922: check_layout would compare nothing: whole is empty"),
    ],
)
def test_arguments_that_say_nothing(layout: Any, whole: Any, held: Any, problem: str) -> None:
    with pytest.raises(DefinitionError, match=f"^{re.escape(problem)}"):
        check_layout(layout, hf.Mesh(tp=2), whole, held)


class Kept(hf.Worker):
    """Keeps a weight that it states to be contiguous, as a function of what it loads."""

    def __init__(self, keep: Any) -> None:
        self.keep = keep
        self.kept: dict[str, Any] = {}

    @staticmethod
    def state_parameters(keep: Any) -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("w", (2, 3), "float32", contiguous=True)]}

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def score(self, rows: Rows) -> Rows:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Replicas())
    def load(self, weights: dict[str, torch.Tensor]) -> None:
        self.kept = {"w": self.keep(weights["w"])}

    def held_weights(self, state: str) -> dict[str, Any]:
        return self.kept


class Learner(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": torch.arange(6.0).view(2, 3)}


def computed(tensor: torch.Tensor) -> ComputedPart:
    return ComputedPart(
        ((0, 2), (0, 3)), tensor.dtype, tensor.device, lambda first, last: [(first, tensor[first:last])]
    )


@pytest.mark.parametrize(
    ("keep", "fault"),
    [
        (torch.clone, None),
        (lambda tensor: tensor.t().contiguous().t(), r"a tensor of shape \(2, 3\) has the strides \(1, 2\)"),
        (lambda tensor: tensor.bfloat16(), "it is stated in float32 and kept in bfloat16"),
        (computed, "it is computed when it is read"),
    ],
)
def test_what_is_stated_to_be_contiguous_is(keep: Any, fault: str | None) -> None:
    @hf.dataflow
    def program(rows: Rows, trainer: Learner, engine: Kept) -> None:
        trainer.update(engine.score(rows))
        hf.sync(trainer, engine)

    places = (hf.place(Learner, pool=hf.ResourcePool([1])), hf.place(Kept, keep, pool=hf.ResourcePool([1])))
    plan = program.compile(hf.Deployment(trainer=places[0], engine=places[1]), {B: 4})
    if fault is None:
        check_layouts(plan)
        return
    with pytest.raises(BrokenLayoutError, match=f"'engine', rank 0 .*'w' is stated to be contiguous, and {fault}"):
        check_layouts(plan)


def synced(actor: type[Actor], mesh: hf.Mesh, engines: hf.Mesh, sharding: Literal["none", "fsdp"]) -> CompiledPlan:
    """An actor and a sampler that begins with other weights."""

    @hf.dataflow
    def ready(prompts: Questions, actor: Actor, sampler: Sampler) -> Rollout:
        rollout = sampler.generate(prompts)
        hf.sync(actor, sampler)
        return rollout

    model, generation = ModelConfig(config=SIZES, pad_token=0), GenerationConfig(max_tokens=2)
    config = ActorConfig(model, generation, training=TrainingConfig(sharding=sharding))
    others = SamplerConfig(replace(model, seed=model.seed + 1), generation)
    trainers, samplers = (
        hf.ResourcePool([side.world_size], use_gpu=False, name=name)
        for side, name in ((mesh, "trainers"), (engines, "engines"))
    )
    deployment = hf.Deployment(
        actor=hf.place(actor, config, pool=trainers, mesh=mesh),
        sampler=hf.place(Sampler, others, pool=samplers, mesh=engines),
    )
    return ready.compile(deployment)


@pytest.mark.parametrize("mesh", [hf.Mesh(tp=2), hf.Mesh(dp=2, tp=2, gen_tp=1)], ids=str)
def test_ready_roles_hold_what_they_declare(mesh: hf.Mesh) -> None:
    check_layouts(synced(Actor, hf.Mesh(tp=2), mesh, "none"))


EMBEDDINGS = "model.model.embed_tokens.weight"


class Reversed(Actor):
    """Its ranks hold the rows of their shards in another order."""

    def held_weights(self, state: str) -> dict[str, Any]:
        parts = super().held_weights(state)
        return {**parts, EMBEDDINGS: getattr(parts[EMBEDDINGS], "tensor", parts[EMBEDDINGS]).flip(0)}


@pytest.mark.nightly_cases("Mesh(pp=1 dp=2 tp=1)")
@pytest.mark.parametrize("mesh", [hf.Mesh(dp=2), hf.Mesh(dp=2, tp=2)], ids=str)
def test_sharded_roles_hold_what_they_declare_on_ray(mesh: hf.Mesh, ray_cluster: Any) -> None:
    check_layouts(synced(Actor, mesh, hf.Mesh(tp=2), "fsdp"), backend="ray")


@pytest.mark.nightly
def test_shards_in_another_order_are_found(ray_cluster: Any) -> None:
    with pytest.raises(BrokenLayoutError, match=rf"'actor', rank 0 .*'{EMBEDDINGS}'\[0, 0\] is .* from \[0, 0\]"):
        check_layouts(synced(Reversed, hf.Mesh(dp=2), hf.Mesh(), "fsdp"), backend="ray")


class Unreadable(Actor):
    def held_weights(self, state: str) -> dict[str, Any]:
        raise ValueError("nothing is held")


@pytest.mark.nightly_cases("ray")
@pytest.mark.parametrize("backend", ["local", "ray"])
def test_a_role_that_raises_is_named(backend: Literal["local", "ray"], ray_cluster: Any) -> None:
    with pytest.raises(
        hf.RoleError, match=r"HF806: 'actor.held_weights \(Unreadable\)' raised on rank 0: .*nothing is held"
    ):
        check_layouts(synced(Unreadable, hf.Mesh(tp=2), hf.Mesh(), "none"), backend=backend)


def test_roles_with_shards_need_processes() -> None:
    with pytest.raises(hf.RoleError, match=r"HF812: .* needs a process for every rank, as on the Ray backend"):
        check_layouts(synced(Actor, hf.Mesh(dp=2), hf.Mesh(), "fsdp"))


def test_a_program_without_anything_to_compare() -> None:
    @hf.dataflow
    def none(rows: Rows, trainer: Trainer) -> None:
        trainer.update(rows)

    plan = none.compile(hf.Deployment(trainer=hf.place(Trainer, pool=hf.ResourcePool([1]))), {B: 4})
    with pytest.raises(DefinitionError, match="no role of a sync in 'none' has a layout"):
        check_layouts(plan)
    assert Parameter("a", (2,)).bytes == 4
