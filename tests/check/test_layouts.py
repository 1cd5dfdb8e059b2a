# mypy: disable-error-code="empty-body"
"""Layouts of weights: what a class inherits, ready-made roles, and all that is not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

import hfdsl as hf
from hfdsl.deploy.weight_syncs import weight_syncs
from hfdsl.protocols.layouts import ByName, Experts, Layout, Only, Parameter, Replicas, Shards, Slices, Stages, Tied
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.workers import Actor, ActorConfig, GenerationConfig, Lora, Sampler, SamplerConfig, TrainingConfig
from hfdsl.rl.workers.config import ModelConfig
from tests.check.prelude import B, Dispatch, Engine, Trainer, engine_layout, register
from tests.check.prelude import Prompts as Ids

SIZES = {"model_type": "llama", "pad_token_id": 0, "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
GENERATION = GenerationConfig(max_tokens=2)
ACTOR = ActorConfig(ModelConfig(config=SIZES), GENERATION)


@hf.dataflow
def ready(prompts: Prompts, actor: Actor, sampler: Sampler) -> Rollout:
    rollout = sampler.generate(prompts)
    hf.sync(actor, sampler)
    return rollout


@hf.dataflow
def plain(prompts: Ids, trainer: Trainer, engine: Engine) -> None:
    trainer.update(engine.generate(prompts))
    hf.sync(trainer, engine)


def codes(actor: Any, sampler: Any, mesh: hf.Mesh, other: hf.Mesh) -> set[str]:
    """What the check says of layouts."""
    deployment = hf.Deployment(
        actor=hf.place(*actor, pool=hf.ResourcePool([mesh.world_size], name="train"), mesh=mesh),
        sampler=hf.place(*sampler, pool=hf.ResourcePool([other.world_size], name="engines"), mesh=other),
    )
    return {code for code in ready.check(deployment).codes if code.startswith("HF73")}


def plain_codes(engine: type[Engine], *arguments: Any, **keywords: Any) -> tuple[str, ...]:
    embedding = Parameter("embed_tokens.weight", (64, 8))
    trainer = hf.place(Trainer, embedding, pool=hf.ResourcePool([2], name="train"), mesh=hf.Mesh(tp=2))
    place = hf.place(engine, *arguments, pool=hf.ResourcePool([2], name="engines"), mesh=hf.Mesh(tp=2), **keywords)
    return plain.check(hf.Deployment(trainer=trainer, engine=place), {B: 64}).codes


@pytest.mark.parametrize("engine", ["auto", "vllm"])
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
@pytest.mark.parametrize("tied", [False, True])
def test_ready_roles_fit_each_other(engine: Any, sharding: Any, tied: bool) -> None:
    model = ModelConfig(config={**SIZES, "tie_word_embeddings": tied})
    actor = replace(ACTOR, model=model, training=TrainingConfig(sharding=sharding))
    sampler = SamplerConfig(model, replace(GENERATION, engine=engine))
    for mesh in (hf.Mesh(dp=2, tp=2), hf.Mesh(dp=3), hf.Mesh(tp=2)):
        for other_mesh in (hf.Mesh(), hf.Mesh(tp=2), hf.Mesh(dp=2, tp=2, gen_tp=1)):
            assert codes((Actor, actor), (Sampler, sampler), mesh, other_mesh) == set()


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"num_hidden_layers": 3}, "HF730"),
        ({"num_hidden_layers": 1}, "HF731"),
        ({"vocab_size": 34}, "HF732"),
    ],
)
def test_ready_roles_of_different_models(changed: dict[str, int], code: str) -> None:
    sampler = SamplerConfig(ModelConfig(config={**SIZES, **changed}), GENERATION)
    assert codes((Actor, ACTOR), (Sampler, sampler), hf.Mesh(tp=2), hf.Mesh()) == {code}


def test_heads_that_a_mesh_does_not_divide_are_reported_once() -> None:
    """By HF813, which knows the sizes of the model."""
    sampler = SamplerConfig(ModelConfig(config=SIZES), GENERATION)
    assert codes((Actor, ACTOR), (Sampler, sampler), hf.Mesh(tp=2), hf.Mesh(tp=4)) == set()
    assert codes((Actor, ACTOR), (Sampler, sampler), hf.Mesh(tp=4), hf.Mesh(tp=2)) == set()


@pytest.mark.parametrize(("layers", "expected"), [(1, {"HF731"}), (2, set()), (3, {"HF730"})])
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_an_adapter_that_is_sent_alone_has_matrices_of_its_own(
    layers: int, expected: set[str], sharding: Literal["none", "fsdp"]
) -> None:
    lora = Lora(rank=2, exports="adapter")
    actor = replace(ACTOR, lora=lora, training=TrainingConfig(sharding=sharding))
    model = ModelConfig(config={**SIZES, "num_hidden_layers": layers})
    for engine in ("auto", "vllm"):
        sampler = SamplerConfig(model, replace(GENERATION, engine=engine), lora=lora)
        assert codes((Actor, actor), (Sampler, sampler), hf.Mesh(dp=2), hf.Mesh()) == expected


def test_an_adapter_that_a_mesh_slices_is_reported_once() -> None:
    """By HF715; its matrices have no heads to divide."""
    lora = Lora(rank=2, exports="adapter")
    actor, sampler = replace(ACTOR, lora=lora), SamplerConfig(ACTOR.model, GENERATION, lora=lora)
    assert codes((Actor, actor), (Sampler, sampler), hf.Mesh(tp=2), hf.Mesh(tp=2)) == set()


def test_a_derived_class_may_build_another_model() -> None:
    class Smaller(Sampler):
        def __init__(self, config: SamplerConfig) -> None:
            super().__init__(replace(config, model=ACTOR.model))

    class FromNumber(Sampler):
        def __init__(self, layers: int) -> None:
            super().__init__(SamplerConfig(ACTOR.model, GENERATION))

    class Renaming(Sampler):
        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy")
        def load(self, weights: dict[str, Any]) -> None: ...

    smaller = SamplerConfig(ModelConfig(config={**SIZES, "num_hidden_layers": 3}), GENERATION)
    for sampler in ((Smaller, smaller), (Renaming, smaller)):
        assert codes((Actor, ACTOR), sampler, hf.Mesh(tp=2), hf.Mesh()) == set()
    assert codes((Actor, ACTOR), (FromNumber, 3), hf.Mesh(tp=2), hf.Mesh()) == {"HF738"}  # its layout is not known
    assert codes((Actor, ACTOR), (Sampler, smaller), hf.Mesh(tp=2), hf.Mesh()) == {"HF730"}


def test_a_placed_class_declares_its_own_layout() -> None:
    class Sliced(Engine):
        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy", layout=Slices(0, units=3))
        def load(self, weights: dict[str, list[float]]) -> None: ...

    assert plain_codes(Engine, Parameter("embed_tokens.weight", (64, 8))) == ()
    assert plain_codes(Sliced, Parameter("embed_tokens.weight", (64, 8))) == ("HF734",)


def nothing(mesh: hf.Mesh, *parameters: Parameter, layout: Layout) -> None:
    """A layout that is not known."""


def another(mesh: hf.Mesh, *parameters: Parameter, layout: Layout) -> object:
    return "rows"


@pytest.mark.parametrize(("function", "expected"), [(nothing, ()), (another, ("HF739",)), (engine_layout, ("HF734",))])
def test_the_function_of_a_layout(function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    class Declaring(Engine):
        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy", layout=function)
        def load(self, weights: dict[str, list[float]]) -> None: ...

    layout = Slices(0, units=3)
    assert plain_codes(Declaring, Parameter("embed_tokens.weight", (64, 8)), layout=layout) == expected


def test_the_function_of_a_layout_without_the_mesh() -> None:
    class Declaring(Engine):
        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy", layout=lambda *, layout: layout)  # the mesh comes first
        def load(self, weights: dict[str, list[float]]) -> None: ...

    pools = [hf.ResourcePool([2], name=name) for name in ("train", "engines")]
    weight = Parameter("embed_tokens.weight", (64, 8))
    trainer = hf.place(Trainer, weight, pool=pools[0], mesh=SLICED)
    engine = hf.place(Declaring, layout=Slices(0), pool=pools[1], mesh=SLICED)
    [finding] = plain.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64}).findings
    assert finding.code == "HF739"
    assert finding.message.startswith("the layout of 'engine.load' raises TypeError: ")
    [note] = finding.notes
    assert note.startswith("it is called with the mesh, and then with the arguments of the constructor")


def test_the_function_of_a_layout_runs_once_for_a_class_with_another_constructor() -> None:
    calls = list[int]()

    def counted(mesh: hf.Mesh, *arguments: Any) -> Layout:
        calls.append(len(arguments))
        if len(arguments) > 1:
            raise TypeError("too many")
        return Slices(0)

    class Declaring(BareEngine):
        def __init__(self, size: int) -> None: ...

        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy", layout=counted)
        def load(self, weights: dict[str, list[float]]) -> None: ...

    class Another(Declaring):
        def __init__(self, *sizes: int) -> None: ...

    trainer = hf.place(BareTrainer, pool=hf.ResourcePool([2], name="train"))
    for sizes, is_known in (((1,), True), ((1, 2), False)):
        place = hf.place(Another, *sizes, pool=hf.ResourcePool([2], name="engines"), mesh=hf.Mesh(tp=2))
        [sync] = weight_syncs(bare.trace(), hf.Deployment(trainer=trainer, engine=place))
        assert sync.target.has_other_arguments != is_known
        assert sync.target.layout() == (Slices(0) if is_known else None)
    assert calls == [1, 2]


WEIGHTS = [
    Parameter(f"model.layers.{layer}.mlp.experts.{expert}.up.weight", (8, 8)) for layer in range(4) for expert in (0, 1)
]
FIRST = f"'{WEIGHTS[0].name}' of 'engine'"
UNNUMBERED = [Parameter("embed_tokens.weight", (64, 8)), Parameter("norm.weight", (8,))]
NORMS, DOWN = ([Parameter(f"layers.{i}.{name}.weight", (8, 8)) for i in (0, 1)] for name in ("norm", "down_proj"))
BLOCKS = [Parameter(f"blk.{layer}.weight", (8, 8)) for layer in range(4)]
PIPELINE, SLICED = hf.Mesh(pp=2), hf.Mesh(tp=2)


def layout_findings(
    layout: Layout, loaded: Sequence[Any], mesh: hf.Mesh = SLICED, exported: Sequence[Any] | None = None
) -> list[tuple[str, str]]:
    """The codes and messages of a sync between a trainer of whole weights and an engine."""
    report = engine_report(layout, loaded, mesh, exported)
    return [(finding.code, finding.message) for finding in report.findings if finding.code.startswith("HF73")]


def engine_report(
    layout: Layout, loaded: Sequence[Any], mesh: hf.Mesh = SLICED, exported: Sequence[Any] | None = None
) -> hf.Report:
    """The check of that sync."""
    pools = [hf.ResourcePool([2], name=name) for name in ("train", "engines")]
    trainer = hf.place(Trainer, *(loaded if exported is None else exported), pool=pools[0], mesh=SLICED)
    engine = hf.place(Engine, *loaded, layout=layout, pool=pools[1], mesh=mesh)
    return plain.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64})


def test_parameters_that_cannot_be_cut_for_other_reasons_are_named() -> None:
    """So that a mesh, or padding, that suits the first one is not the next mistake."""
    weights = [Parameter("embed", (10, 6)), *(Parameter(f"{i}.{name}", (8, 6)) for i in range(2) for name in "qk")]
    layout = ByName({"embed": Slices(0, padding=4), "*.q": Slices(0, units=4), "*.k": Slices(0, units=2)})
    pools = [hf.ResourcePool([count], name=name) for name, count in (("train", 2), ("engines", 3))]
    deployment = hf.Deployment(
        trainer=hf.place(Trainer, *weights, pool=pools[0], mesh=SLICED),
        engine=hf.place(Engine, *weights, layout=layout, pool=pools[1], mesh=hf.Mesh(tp=3)),
    )
    [finding] = [each for each in plain.check(deployment, {B: 64}).findings if each.code == "HF734"]
    assert "'embed' (10, 6) cannot be cut: tp = 3 does not divide the 12 elements" not in finding.message
    assert finding.message.endswith("'0.q' (8, 6) cannot be cut: tp = 3 does not divide the 4 heads along dim 0")
    assert finding.notes == ("nor can '0.k' (8, 6): tp = 3 does not divide the 2 heads along dim 0",)


@pytest.mark.parametrize(
    ("layout", "mesh", "parameters", "problem"),
    [
        (
            ByName({"*.q.weight": Slices(0), "*.k.*": Slices(1)}),
            SLICED,
            WEIGHTS,
            "has parts for '*.q.weight', '*.k.*', but none of the 8 parameters of 'engine' has such a name",
        ),
        (
            ByName({"*.weight": Slices(0), "*.up.weight": Slices(1)}),
            SLICED,
            WEIGHTS,
            f"never uses '*.up.weight': '*.weight' comes first and matches all that it does, such as {FIRST}",
        ),
        (
            ByName({"*.norms.weight": Replicas(), "*": Slices(0)}),
            SLICED,
            [*WEIGHTS, *NORMS],
            (
                "has a part for '*.norms.weight', but 'engine' states no parameter of such a name; '*' matches "
                "'layers.0.norm.weight'"
            ),
        ),
        (
            ByName({"*.dwon_proj.*": Slices(1), "*.up.*": Slices(0)}),
            SLICED,
            [*WEIGHTS, *DOWN],
            (
                "has a part for '*.dwon_proj.*', but 'engine' states no parameter of such a name; no pattern matches "
                "'layers.0.down_proj.weight'"
            ),
        ),
        (
            ByName({"*.downproj.*": Slices(1), "*proj.*": Slices(0)}),
            SLICED,
            DOWN,
            (
                "has a part for '*.downproj.*', but 'engine' states no parameter of such a name; '*proj.*' matches "
                "'layers.0.down_proj.weight'"
            ),
        ),
        (Stages(8), PIPELINE, WEIGHTS, "has 8 layers, but 'engine' states 8 parameters, of 4 layers"),
        (Stages(8).then(Slices(0)), PIPELINE, WEIGHTS, "has 8 layers, but 'engine' states 8 parameters, of 4 layers"),
        (Stages(4), PIPELINE, BLOCKS, "has 4 layers, but finds none in the names of the 4 parameters of 'engine'"),
        (Experts(4), SLICED, WEIGHTS, "has 4 experts, but 'engine' states 8 parameters, of 2 experts"),
        (
            Tied(Slices(0), {"haed": "embeddings"}),
            SLICED,
            [Parameter("head", (8, 8)), Parameter("embeddings", (8, 8))],
            "ties 'haed', but 'engine' states no parameter of that name",
        ),
        (
            Tied(Slices(0), {"head": "embedding"}),
            SLICED,
            [Parameter("head", (8, 8)), Parameter("embeddings", (8, 8))],
            "ties 'embedding', but 'engine' states no parameter of that name",
        ),
    ],
)
def test_a_layout_of_parameters_that_a_model_does_not_have(
    layout: Layout, mesh: hf.Mesh, parameters: list[Parameter], problem: str
) -> None:
    assert layout_findings(layout, parameters, mesh) == [("HF738", f"the layout of 'engine.load' {problem}")]


@pytest.mark.parametrize(
    ("layout", "mesh", "parameters"),
    [
        (ByName({"*.q.weight": Slices(0), "*.up.weight": Slices(1)}), SLICED, WEIGHTS),  # of two kinds of models
        (ByName({"embeddings": Slices(0)}), SLICED, [Parameter("embeddings", (8, 8))]),
        (Tied(ByName({"embeddings": Slices(0)}), {"head": "embeddings"}), SLICED, [Parameter("head", (8, 8))]),
        (
            Tied(Slices(0), {"head": "embeddings"}),
            SLICED,
            [Parameter("embeddings", (8, 8))],
        ),  # the head of the other side
        (Tied(Slices(0), {"head": "weight"}), SLICED, [Parameter("head", (8, 8))]),  # as a rank returns it
        (ByName({}), SLICED, WEIGHTS),
        (ByName({"*.weight": Slices(0), "*.up.weight": Slices(0)}), SLICED, WEIGHTS),  # the same for both
        (ByName({"*.0.up.weight": Slices(0), "*.up.weight": Slices(1)}), SLICED, WEIGHTS),  # it gets the others
        (ByName({"*.up.weight": Slices(0), "*": Slices(1)}), SLICED, WEIGHTS),  # there are no others
        (ByName({"*.up.*": Slices(0), "*.weight": Slices(1)}), SLICED, WEIGHTS),
        (ByName({"*.weight": Slices(0), "*.bias": Slices(1)}), SLICED, WEIGHTS),  # of two kinds of models
        (ByName({"*.norms.weight": Slices(0), "*": Slices(0)}), SLICED, NORMS),  # the same for both
        (ByName({"*.norms.weight": Replicas(), "*.up.*": Slices(0)}), SLICED, [*WEIGHTS, *NORMS]),
        (ByName({"*.norms.weight": Slices(0), "*.norm.*": Slices(1)}), SLICED, NORMS),  # of two kinds of models
        (ByName({"*.town_proj.*": Slices(1), "*.up.*": Slices(0)}), SLICED, [*WEIGHTS, *DOWN]),
        (ByName({"*n_proj.*": Slices(0), "*w_proj.*": Slices(1)}), SLICED, DOWN),
        (ByName({"*.ups.*": Slices(1), "*": Slices(0)}), SLICED, WEIGHTS),
        (Stages(4), PIPELINE, WEIGHTS),
        (Stages(8), SLICED, WEIGHTS),  # a single stage
        (Stages(8), PIPELINE, UNNUMBERED),
        (Experts(2), SLICED, WEIGHTS),
        (Experts(4), SLICED, BLOCKS),  # a model without experts
        (Experts(4), PIPELINE, WEIGHTS),
    ],
)
def test_a_layout_of_parameters_that_a_model_has(layout: Layout, mesh: hf.Mesh, parameters: list[Parameter]) -> None:
    assert layout_findings(layout, parameters, mesh) == []


def test_tied_parameters_have_one_shape() -> None:
    parameters = [Parameter("embeddings", (8, 8)), Parameter("head", (12, 8))]
    problem = "'engine' ties 'head' to 'embeddings', and states the shapes (12, 8) and (8, 8)"
    for exported in (parameters, parameters[:1]):
        found = layout_findings(Tied(Slices(0), {"head": "embeddings"}), parameters, exported=exported)
        assert ("HF732", problem) in found


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_part_for_what_the_other_side_alone_states_is_reported_once(lacking: int) -> None:
    sides = [UNNUMBERED, UNNUMBERED]
    sides[lacking] = UNNUMBERED[1:]
    layout = ByName({"embed_tokens.weight": Slices(0), "norm.weight": Slices(0)})
    [(code, message)] = layout_findings(layout, sides[0], exported=sides[1])
    assert (code, "'embed_tokens.weight'" in message) == (("HF731", True) if lacking == 0 else ("HF730", True))


@pytest.mark.parametrize(
    ("layout", "axes"),
    [
        (Slices(0).then(Shards("tp")), "tp, then over tp"),
        (Slices(0).then(Shards("rank")), "tp, then over rank"),
        (Slices(0).then(Replicas(), Shards(("dp", "tp"))), "tp, then over dp*tp"),
        (Shards("dp").then(Only(axis="tp", at=())), None),
    ],
)
def test_cuts_that_share_coordinates_are_named(layout: Layout, axes: str | None) -> None:
    [finding] = [each for each in engine_report(layout, WEIGHTS).findings if each.code == "HF736"]
    expected = (
        f"the layout of 'engine.load' cuts it over {axes}: these share coordinates, so a rank holds what all of them"
    )
    assert [note.startswith(expected) for note in finding.notes] == ([] if axes is None else [True])


UNSTATED_TIE = Tied(Slices(0), {"head": "table", "embeddings": "table"})
"""Two names of one tensor that has a third one, which no role states."""


def test_tied_parameters_of_an_unstated_name_have_one_shape() -> None:
    parameters = [Parameter("embeddings", (8, 8)), Parameter("head", (12, 8))]
    problem = "'engine' ties 'head' to 'embeddings', and states the shapes (12, 8) and (8, 8)"
    assert layout_findings(UNSTATED_TIE, parameters) == [("HF732", problem)]


def test_two_exported_parameters_do_not_arrive_in_a_tensor_of_an_unstated_name() -> None:
    parameters = [Parameter("embeddings", (8, 8)), Parameter("head", (8, 8))]
    problem = "'trainer' exports 'head' and 'embeddings' as two parameters, and 'engine' has one of both names"
    [(code, message)] = layout_findings(UNSTATED_TIE, parameters)
    assert (code, message) == ("HF731", f"{problem}: the values of 'head' do not arrive")


class Declaring(hf.Worker):
    """Exports what each rank holds."""

    state_parameters = staticmethod(Engine.state_parameters)

    def __init__(self, *parameters: Parameter, layout: Layout) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Ids) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=engine_layout)
    def weights(self) -> dict[str, list[float]]: ...


@hf.dataflow
def declared(prompts: Ids, trainer: Declaring, engine: Engine) -> None:
    trainer.update(prompts)
    hf.sync(trainer, engine)


@pytest.mark.parametrize(
    ("exported", "loaded", "sizes", "is_cut"),
    [
        (Slices(0, units=2), Slices(0), (2, 4), True),
        (Slices(0), Slices(0, units=2), (4, 2), True),
        (Slices(0, units=2), Slices(0), (1, 4), True),
        (Slices(0, units=4), Slices(0), (2, 4), False),
        (Slices(0, units=2), Slices(0), (2, 2), False),
        (Slices(0, units=2), Slices(0), (2, 1), False),
        (Slices(0, units=2), Slices(1), (2, 4), False),
        (Slices(0, units=2), Slices(0, units=2, shared=True), (2, 4), False),
        (Slices(0, units=2), Slices(0, units=8), (2, 4), False),  # heads in groups: it says what it may cut
        (Slices(0, units=2), Replicas().then(Shards("tp")), (2, 4), False),  # gathered before it computes
        (Slices(0, units=2), Slices(0, axis=("tp",)), (2, 4), True),
        (Slices(0, units=2), Slices(0, axis="rank"), (2, 4), False),  # gathered, too
        (Slices(0, units=2), Slices(0, axis=("tp", "dp")), (2, 4), False),
        (Slices(0, units=2), Slices(0, padding=4), (2, 4), False),
    ],
    ids=str,
)
def test_heads_that_one_side_states_and_the_other_cuts(
    exported: Layout, loaded: Layout, sizes: tuple[int, int], is_cut: bool
) -> None:
    meshes, keys = [hf.Mesh(tp=size) for size in sizes], Parameter("k_proj.weight", (8, 8))
    pools = [hf.ResourcePool([size], name=name) for size, name in zip(sizes, ("train", "engines"), strict=True)]
    trainer = hf.place(Declaring, keys, layout=exported, pool=pools[0], mesh=meshes[0])
    engine = hf.place(Engine, keys, layout=loaded, pool=pools[1], mesh=meshes[1])
    report = declared.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64})
    found = [finding.message for finding in report.findings if finding.code.startswith("HF73")]
    part = 8 // max(sizes)
    assert len(found) == is_cut
    assert all("has 2 heads of 4 where" in message and f"into parts of {part}" in message for message in found)


FUSED = Slices(0, blocks=(4, 2, 2))


@pytest.mark.parametrize(
    ("exported", "is_reported"),
    [
        (FUSED, False),
        (Replicas(), False),
        (Slices(0), True),
        (Slices(0, blocks=(2, 2, 4)), True),
        (Slices(0, interleaved=2), True),
        (Slices(1), False),
        (FUSED.then(Slices(0, "dp")), False),  # stored in parts, and gathered before a rank computes
        (FUSED.then(Slices(0, "gen_tp")), False),  # a part of each rank's matrices
        (Slices(0, "dp"), False),
        (Slices(0, "dp").then(Slices(1)), False),
        (Slices(0, ("dp", "tp")), False),
        (Slices(0, "gen_tp"), True),
        (Replicas().then(Shards("dp")), False),
    ],
    ids=str,
)
def test_matrices_that_one_side_states_and_the_other_mixes(exported: Layout, is_reported: bool) -> None:
    fused, mesh = Parameter("qkv_proj.weight", (8, 8)), hf.Mesh(dp=2, tp=2)
    pools = [hf.ResourcePool([size], name=name) for size, name in ((4, "train"), (2, "engines"))]
    trainer = hf.place(Declaring, fused, layout=exported, pool=pools[0], mesh=mesh)
    engine = hf.place(Engine, fused, layout=FUSED, pool=pools[1], mesh=SLICED)
    report = declared.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64})
    assert [finding.code for finding in report.findings if finding.code == "HF737"] == ["HF737"] * is_reported


QUERIES, KEYS, VALUES, OUTPUTS = (
    Parameter(f"layers.0.attn.{name}_proj.weight", (rows, 8)) for name, rows in zip("qkvo", (8, 4, 4, 8), strict=True)
)
QKV = Parameter("layers.0.attn.qkv_proj.weight", (16, 8))


@pytest.mark.parametrize(
    ("exported", "loaded", "note"),
    [
        ([QKV], [QUERIES, KEYS, VALUES], f"{QKV.name!r}, which has as many rows as {QUERIES.name!r}, "),
        ([QKV, OUTPUTS], [QUERIES, KEYS, VALUES, OUTPUTS], f"{QKV.name!r}, which has as many rows as "),
        ([QUERIES, KEYS, VALUES, OUTPUTS], [QKV, OUTPUTS], f"{QUERIES.name!r}, {KEYS.name!r}, {VALUES.name!r}, which "),
        ([QKV], [QUERIES, KEYS], ""),
        ([QKV], [replace(each, name=f"mlp.{each.name}") for each in (QUERIES, KEYS, VALUES)], ""),
    ],
)
def test_matrices_that_one_side_has_fused(exported: list[Parameter], loaded: list[Parameter], note: str | None) -> None:
    pools = [hf.ResourcePool([2], name=name) for name in ("train", "engines")]
    trainer = hf.place(Declaring, *exported, layout=Slices(0), pool=pools[0], mesh=SLICED)
    engine = hf.place(Engine, *loaded, layout=Slices(0), pool=pools[1], mesh=SLICED)
    findings = declared.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64}).findings
    [finding] = [finding for finding in findings if finding.code == "HF730"]
    says = [each for each in finding.notes if "as many rows as" in each]
    assert len(says) == bool(note)
    assert all(each.startswith(f"'trainer' exports {note}") for each in says)


def test_parameters_are_stated_once_and_not_as_an_empty_list() -> None:
    first, other_shape = WEIGHTS[0], replace(WEIGHTS[0], shape=(4, 8))
    twice = f"states the parameter {first.name!r} of 'policy' 2 times, as"
    assert layout_findings(Replicas(), [*WEIGHTS, first], exported=WEIGHTS) == [("HF739", f"'engine' {twice} (8, 8)")]
    both = [*WEIGHTS, other_shape]
    messages = [f"'{role}' {twice} (8, 8) and (4, 8)" for role in ("engine", "trainer")]
    assert sorted(layout_findings(Replicas(), both)) == [("HF739", message) for message in messages]
    empty = "states an empty list of parameters of 'policy', but"
    assert layout_findings(Slices(0), [], exported=WEIGHTS) == [("HF739", f"'engine' {empty} 'trainer' states 8")]
    assert layout_findings(Slices(0), WEIGHTS, exported=[]) == [("HF739", f"'trainer' {empty} 'engine' states 8")]
    assert layout_findings(Slices(0), [], exported=[]) == []  # neither knows them
    wrong = "'engine' states ('weight', (8, 8)) as a parameter of 'policy', which is not"
    [(code, message)] = layout_findings(Replicas(), [("weight", (8, 8))], exported=WEIGHTS)
    assert (code, message) == ("HF739", f"{wrong} an hfdsl.protocols.layouts.Parameter")


def broken(*parameters: Parameter, layout: Layout) -> dict[str, list[Parameter]]:
    raise KeyError("hidden_size")


def elsewhere(*parameters: Parameter, layout: Layout) -> dict[str, list[Parameter]]:
    return {"critic": []}


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        (broken, "raises KeyError: 'hidden_size'"),
        (lambda: {"policy": WEIGHTS}, "raises TypeError: "),  # not what the constructor takes
        (lambda *_, layout: WEIGHTS[:1], "returns [Parameter("),
        (lambda *_, layout: {"policy": WEIGHTS[0]}, "returns Parameter("),
        (
            lambda *_, layout: {"polciy": WEIGHTS},
            "names the state 'polciy', which no method of Stating has; a method loads 'policy'",
        ),
        (elsewhere, "names the state 'critic', which no method of Stating has; a method loads 'policy'"),
        (lambda *_, layout: {}, None),  # it does not know them
        (lambda *_, layout: {"policy": WEIGHTS, "critic": []}, None),  # perhaps of another class
    ],
)
def test_state_parameters_that_would_count_as_unknown(fact: Any, problem: str | None) -> None:
    class Stating(Engine):
        state_parameters = staticmethod(fact)

    class Constructed(Stating):
        def __init__(self, *parameters: Parameter, layout: Layout) -> None: ...

    for role, message in ((Stating, problem), (Constructed, None)):  # another constructor may take anything
        trainer = hf.place(Trainer, *WEIGHTS, pool=hf.ResourcePool([2], name="train"), mesh=SLICED)
        engine = hf.place(role, *WEIGHTS, layout=Replicas(), pool=hf.ResourcePool([2], name="engines"), mesh=SLICED)
        report = plain.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64})
        messages = [finding.message for finding in report.findings if finding.code == "HF739"]
        assert len(messages) == (message is not None)
        assert message is None or messages[0].startswith(f"'state_parameters' of 'engine' {message}")


def test_an_empty_list_of_what_a_layout_cuts() -> None:
    class Declaring(Engine):
        state_parameters = staticmethod(Engine.state_parameters)

        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy", layout=Slices(0))
        def load(self, weights: dict[str, list[float]]) -> None: ...

    trainer = hf.place(Trainer, pool=hf.ResourcePool([2], name="train"), mesh=SLICED)
    engine = hf.place(Declaring, pool=hf.ResourcePool([2], name="engines"), mesh=SLICED)
    [finding] = plain.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64}).findings
    assert finding.message == "'engine' states an empty list of parameters of 'policy', but declares a layout of them"


def test_a_role_that_states_nothing_is_not_blamed() -> None:
    class Silent(Engine):
        @staticmethod
        def state_parameters(*parameters: Parameter, layout: Layout = Replicas()) -> Any:  # noqa: B008  # a value
            return {}

    assert plain_codes(Silent, Parameter("another.weight", (3,))) == ()


class BareTrainer(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def update(self, prompts: Ids) -> None: ...

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, list[float]]: ...


class BareEngine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def look(self, prompts: Ids) -> Ids: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, list[float]]) -> None: ...


@hf.dataflow
def bare(prompts: Ids, trainer: BareTrainer, engine: BareEngine) -> None:
    trainer.update(engine.look(prompts))
    hf.sync(trainer, engine)


def sliced(mesh: hf.Mesh) -> Layout:
    return Slices(0)


def unknown(mesh: hf.Mesh) -> None:
    """A layout that is not known, as of a model that is only known when it is loaded."""


@pytest.mark.parametrize(
    ("layout", "states", "expected"),
    [
        (Slices(0), False, ("HF738",)),
        (sliced, False, ("HF738",)),
        (Slices(0), True, ()),  # it may know them another time
        (Replicas(), False, ()),
        (unknown, False, ()),
        (None, False, ()),
    ],
)
def test_a_layout_of_parameters_that_no_class_states(layout: Any, states: bool, expected: tuple[str, ...]) -> None:
    class Declaring(BareEngine):
        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy", layout=layout)
        def load(self, weights: dict[str, list[float]]) -> None: ...

    class Stating(Declaring):
        @staticmethod
        def state_parameters() -> dict[str, Any]:
            return {}

    trainer = hf.place(BareTrainer, pool=hf.ResourcePool([2], name="train"))
    role = Stating if states else Declaring
    engine = hf.place(role, pool=hf.ResourcePool([2], name="engines"), mesh=hf.Mesh(tp=2))
    assert bare.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64}).codes == expected


def test_a_sync_in_two_places_is_reported_once() -> None:
    @hf.dataflow
    def twice(prompts: Ids, trainer: Trainer, engine: Engine) -> None:
        hf.sync(trainer, engine)
        trainer.update(engine.generate(prompts))
        hf.sync(trainer, engine)

    pool = hf.ResourcePool([2], name="train")
    trainer = hf.place(Trainer, Parameter("a", (4,)), pool=pool)
    engine = hf.place(Engine, Parameter("a", (5,)), pool=hf.ResourcePool([2], name="engines"))
    assert twice.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64}).codes == ("HF732",)
