# mypy: disable-error-code="empty-body"
"""Pools, memory and tensor-parallel groups against brute force over single devices; and every help line tried."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.report import Report
from hfdsl.deploy.pools import ResourcePool, devices, roots
from tests.nightly import examples
from tests.protocols.test_bin_packing import packs


class B(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.Obj[int, B]  # of no known size, so that billions of rows may be returned


class Role(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def score(self, rows: Rows) -> Rows: ...


@hf.dataflow
def one(rows: Rows, a: Role) -> Rows:
    return a.score(rows)


@hf.dataflow
def two(rows: Rows, a: Role, b: Role) -> tuple[Rows, Rows]:
    return a.score(rows), b.score(rows)


@hf.dataflow
def three(rows: Rows, a: Role, b: Role, c: Role) -> tuple[Rows, Rows, Rows]:
    return a.score(rows), b.score(rows), c.score(rows)


ROWS = {B: 2**6 * 3**3 * 5 * 7 * 11 * 13 * 17 * 19}  # whatever the ranks
MESH = re.compile(r"hf\.Mesh\((?:[^()]|\([^()]*\))*\)")
FLOWS: dict[int, Any] = {1: one, 2: two, 3: three}
sizes = st.lists(st.integers(1, 5), min_size=1, max_size=2)


@st.composite
def pools(draw: st.DrawFn) -> list[ResourcePool]:
    """A pool a role: owned, shared, split or merged."""
    train = ResourcePool(draw(sizes), name="train")
    second_pool = ResourcePool(draw(sizes), name="other")
    choices = [train, second_pool, train.merge(second_pool), ResourcePool(draw(sizes), use_gpu=False, name="cpu")]
    if train.world_size > 1:
        first = draw(st.integers(1, train.world_size - 1))
        choices += train.split([first, train.world_size - first])
    return draw(st.lists(st.sampled_from(choices), min_size=1, max_size=3))


def check(
    places: list[ResourcePool], cluster: hf.Cluster | None = None, memory: list[str | None] | None = None
) -> Report:
    amounts = memory or [None] * len(places)
    roles = {n: hf.place(Role, pool=pool, gpu_memory=m) for n, pool, m in zip("abc", places, amounts, strict=False)}
    report: Report = FLOWS[len(places)].check(hf.Deployment(**roles), ROWS, cluster)
    return report


def nodes_of(root: ResourcePool) -> list[int]:
    """The node of every slot."""
    return [node for node, count in enumerate(root.processes) for _ in range(count)]


@settings(max_examples=examples(300))
@given(pools(), st.lists(st.tuples(st.integers(0, 8), st.integers(1, 12)), min_size=1, max_size=3))
def test_pools_fit_where_brute_force_places_them(places: list[ResourcePool], nodes: list[tuple[int, int]]) -> None:
    kinds = [hf.Nodes(1, gpus=g, gpu_memory_gib=80 if g else None, cpus=c / 10) for g, c in nodes]
    owners = {root.name: root for pool in places for root in roots(pool)}
    used = {(name, nodes_of(owners[name])[slot]) for pool in places for name, slot in devices(pool)}
    slots = [(owners[name].processes[node], owners[name].use_gpu) for name, node in used]
    gpus = packs([(n,) for n, gpu in slots if gpu], [(g,) for g, _ in nodes])
    both = packs([(n if gpu else 0, n) for n, gpu in slots], [*nodes])  # a tenth of a CPU a slot
    expected = () if both else ("HF505",) if gpus else ("HF502",)
    assert check(places, hf.Cluster(*kinds)).codes == expected


def test_a_cluster_of_16384_gpus() -> None:
    cluster = hf.Cluster(hf.Nodes(2048, gpus=8, gpu_memory_gib=80, cpus=96), hf.Nodes(4, cpus=64))

    def places(nodes: int) -> hf.Deployment:
        pool, rest = hf.ResourcePool([8] * 1024, name="train"), hf.ResourcePool([8] * nodes, name="rest")
        return hf.Deployment(a=hf.place(Role, pool=pool, mesh=hf.Mesh(dp=1024, tp=8)), b=hf.place(Role, pool=rest))

    assert two.check(places(1024), {B: 2**20}, cluster).findings == ()
    [finding] = two.check(places(1026), {B: 1024 * 1026 * 8}, cluster).findings
    assert finding.message == (
        "pools 'train' [8] * 1024 and 'rest' [8] * 1026 need 16400 GPUs, and the cluster has 16384"
    )


def test_unequal_nodes_are_no_finding() -> None:
    cluster = hf.Cluster(hf.Nodes(1, gpus=4, gpu_memory_gib=80, cpus=8), hf.Nodes(1, gpus=2, gpu_memory_gib=80, cpus=8))
    deployment = hf.Deployment(a=hf.place(Role, pool=hf.ResourcePool([4, 2]), mesh=hf.Mesh(dp=3, tp=2)))
    assert one.check(deployment, ROWS, cluster).findings == ()


def test_of_a_split_pool_only_the_nodes_in_use_are_asked_for() -> None:
    left, right = hf.ResourcePool([8, 8]).split([8, 8])
    cluster = hf.Cluster(hf.Nodes(1, gpus=8, gpu_memory_gib=80, cpus=8))
    assert check([left], cluster).findings == ()
    assert check([left, right], cluster).codes == ("HF502",)


def test_suggested_pools_were_tried() -> None:
    def asks(gpus: int, nodes: int, *places: ResourcePool) -> tuple[str, ...]:
        cluster = hf.Cluster(hf.Nodes(nodes, gpus=gpus, gpu_memory_gib=80, cpus=8))
        [finding] = check(list(places), cluster).findings
        return finding.help

    pool = hf.ResourcePool
    assert asks(4, 2, pool([8], name="p")) == ("spread 'p' over nodes of 4 GPUs: hf.ResourcePool([4, 4])",)
    assert check([pool([4, 4])], hf.Cluster(hf.Nodes(2, gpus=4, gpu_memory_gib=80, cpus=8))).ok
    assert asks(4, 2, pool([6], name="p")) == ("spread 'p' over nodes of 4 GPUs: hf.ResourcePool([4, 2])",)
    assert asks(4, 1, pool([4], name="p"), pool([4], name="q")) == ("place 'b' on pool 'p' beside 'a'",)
    assert asks(4, 1, pool([4], name="p"), pool([2], name="q")) == (
        "place 'b' on pool 'p' beside 'a'; give 'b' hf.Mesh(dp=4)",
    )
    assert asks(4, 1, pool([4, 4], name="p")) == ("hf.ResourcePool([4]) for 'p' fits; give 'a' hf.Mesh(dp=4)",)
    assert asks(3, 1, pool([4], name="p")) == ("hf.ResourcePool([3]) for 'p' fits; give 'a' hf.Mesh(dp=3)",)
    assert asks(1, 1, pool([1] * 16, name="p")) == ("hf.ResourcePool([1]) for 'p' fits; give 'a' hf.Mesh()",)
    assert asks(4, 1, pool([4], name="p").merge(pool([4], name="q"))) == ()


def test_roles_are_not_sent_to_gpus_that_they_overfill() -> None:
    cluster = hf.Cluster(hf.Nodes(1, gpus=4, gpu_memory_gib=80, cpus=8))
    places = [hf.ResourcePool([4], name="p"), hf.ResourcePool([4], name="q")]
    [finding] = check(places, cluster, ["70%", "40%"]).findings
    assert finding.code == "HF502"
    assert finding.help == ()


# -- memory


@settings(max_examples=examples(300))
@given(
    pools(), st.lists(st.sampled_from([None, "30%", "70%", "24GiB", "56GiB"]), min_size=3, max_size=3), st.booleans()
)
def test_memory_is_added_up_device_by_device(
    places: list[ResourcePool], memory: list[str | None], described: bool
) -> None:
    gib = {None: 0.0, "30%": 24.0, "70%": 56.0, "24GiB": 24.0, "56GiB": 56.0}  # of GPUs with 80
    part = {None: 0.0, "30%": 0.3, "70%": 0.7, "24GiB": 1e-6, "56GiB": 1e-6}  # some of a GPU of unknown size
    used: dict[tuple[str, int], float] = defaultdict(float)
    for pool, text in zip(places, memory, strict=False):
        for device in devices(pool) if pool.use_gpu else ():
            used[device] += gib[text] / 80 if described else part[text]
    cluster = hf.Cluster(hf.Nodes(9, gpus=8, gpu_memory_gib=80, cpus=8)) if described else None
    report = check(places, cluster, memory[: len(places)])
    assert set(report.codes) == ({"HF504"} if max(used.values(), default=0) > 1 + 1e-9 else set())
    for finding in report:
        names = re.findall(r"'(\w)' \(", finding.message)
        assert len(names) >= 2
        assert {label.text for label in (finding.primary, *finding.related)} >= {
            f"keeps {memory['abc'.index(name)]}" for name in names
        }


def test_the_largest_gpu_that_takes_a_node_of_the_pool_counts() -> None:
    small, large = hf.Nodes(1, gpus=8, gpu_memory_gib=80, cpus=8), hf.Nodes(1, gpus=4, gpu_memory_gib=141, cpus=8)
    cluster = hf.Cluster(small, large)
    assert check([hf.ResourcePool([4])], cluster, ["100GiB"]).findings == ()
    [finding] = check([hf.ResourcePool([8], name="p")], cluster, ["100GiB"]).findings
    assert finding.message == "'a' (100GiB) keeps 100 GiB of each GPU of pool 'p', which has at most 80 GiB"
    assert check([hf.ResourcePool([4])], None, ["100GiB"]).findings == ()


def test_all_of_a_gpu_and_a_little_more() -> None:
    pool = hf.ResourcePool([4], name="p")
    [finding] = check([pool, pool], None, ["100%", "1GiB"]).findings
    assert finding.message == "'a' (100%) and 'b' (1GiB) keep 100% and 1 GiB of each GPU of pool 'p', which they share"
    assert check([pool, pool], None, ["60%", "40%"]).findings == ()
    cluster = hf.Cluster(hf.Nodes(2, gpus=4, gpu_memory_gib=80, cpus=8))
    [finding] = check([pool, pool], cluster, ["100%", "1GiB"]).findings
    assert finding.message.endswith("keep 100% and 1 GiB of each GPU of pool 'p', which they share"), "whatever it has"


def test_the_last_role_is_offered_a_pool_of_its_own_where_there_is_room() -> None:
    pool, node = hf.ResourcePool([4], name="p"), {"gpus": 4, "gpu_memory_gib": 80, "cpus": 8}
    memory: list[str | None] = ["40%", "40%", "40%"]
    [finding] = check([pool] * 3, hf.Cluster(hf.Nodes(2, **node)), memory).findings
    assert "give 'c' a pool of its own: the cluster has room for hf.ResourcePool([4])" in finding.help
    [finding] = check([pool] * 3, hf.Cluster(hf.Nodes(1, **node)), memory).findings
    assert finding.help == ()


def test_the_pool_of_its_own_is_as_large_as_that_of_the_role_that_moves() -> None:
    pool, node = hf.ResourcePool([4], name="p"), {"gpus": 4, "gpu_memory_gib": 80, "cpus": 8}
    half, _ = pool.split([2, 2])
    cluster = hf.Cluster(hf.Nodes(2, **node))
    [finding] = check([pool, pool, half], cluster, ["20%", "20%", "90%"]).findings
    assert finding.help == ("give 'c' a pool of its own: the cluster has room for hf.ResourcePool([2])",)
    [finding] = check([pool], cluster, ["81GiB"]).findings
    assert finding.help == (), "a pool of its own has no larger GPUs"


# -- tensor-parallel groups


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[ResourcePool, hf.Mesh]:
    pp, dp, tp = draw(st.sampled_from([(1, 1, 4), (1, 2, 2), (2, 1, 2), (1, 3, 2), (2, 2, 2), (1, 2, 4), (1, 4, 1)]))
    order = draw(st.permutations(["pp", "dp", "tp"]))
    pool = draw(cut(pp * dp * tp))
    if pool.world_size > 2:
        left, right = pool.split([2, pool.world_size - 2])
        middle = draw(cut(pool.world_size - 2, "q"))
        pool = draw(st.sampled_from([pool, right.merge(left), left.merge(middle), middle.merge(left)]))
    return pool, hf.Mesh(pp=pp, dp=dp, tp=tp, order=tuple(order))


@st.composite
def cut(draw: st.DrawFn, slots: int, name: str = "p") -> ResourcePool:
    ends = sorted({0, slots, *draw(st.lists(st.integers(1, slots), max_size=3))})
    return ResourcePool([b - a for a, b in itertools.pairwise(ends)], name=name)


@settings(max_examples=examples(300))
@given(laid_out())
def test_groups_of_consecutive_ranks_that_cross_nodes_are_reported(place: tuple[ResourcePool, hf.Mesh]) -> None:
    pool, mesh = place
    owners = {root.name: root for root in roots(pool)}
    node = [(name, nodes_of(owners[name])[slot]) for name, slot in devices(pool)]
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in range(mesh.world_size):
        at = mesh.coordinates(rank)
        groups[at.pp, at.dp].append(rank)
    runs = all(ranks[-1] - ranks[0] == mesh.tp - 1 for ranks in groups.values())
    steps = [(node[a], node[b]) for ranks in groups.values() for a, b in itertools.pairwise(ranks)]
    crosses = any(before[0] == after[0] and before[1] != after[1] for before, after in steps)
    report = one.check(hf.Deployment(a=hf.place(Role, pool=pool, mesh=mesh)), ROWS)
    assert report.codes == (("HF503",) if runs and crosses else ())
    for help_line in (line for finding in report for line in finding.help):
        better = eval(MESH.findall(help_line)[0], {"hf": hf})
        assert one.check(hf.Deployment(a=hf.place(Role, pool=pool, mesh=better)), ROWS).findings == ()


def test_groups_that_may_cross_nodes() -> None:
    def codes(pool: ResourcePool, mesh: hf.Mesh, *kinds: hf.Nodes) -> tuple[str, ...]:
        cluster = hf.Cluster(*kinds) if kinds else None
        return one.check(hf.Deployment(a=hf.place(Role, pool=pool, mesh=mesh)), ROWS, cluster).codes

    wide, nodes = hf.Mesh(tp=8), hf.Nodes(18, gpus=4, gpu_memory_gib=186, cpus=144)
    assert codes(hf.ResourcePool([4, 4]), wide) == ("HF503",)
    assert codes(hf.ResourcePool([4, 4]), wide, nodes) == ("HF503",)
    assert codes(hf.ResourcePool([4, 4]), wide, replace(nodes, domain=18)) == ()
    assert codes(hf.ResourcePool([4, 4]), wide, replace(nodes, count=1, gpus=8)) == ()  # there is only one node
    assert codes(hf.ResourcePool([4, 4]), wide, replace(nodes, count=1, gpus=8), hf.Nodes(4, cpus=64)) == ()
    assert codes(hf.ResourcePool([4, 4], use_gpu=False), wide) == ()
    assert codes(hf.ResourcePool([4]).merge(hf.ResourcePool([4])), wide) == ()  # perhaps of one node
    assert codes(hf.ResourcePool([8, 8]), hf.Mesh(dp=2, tp=8)) == ()


# -- classes


@hf.requires("heads % tp == 0", "layers % pp == 0")
class Model(hf.Worker):
    def __init__(self, heads: int, layers: int) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B >= world_size * micro_dp")
    def score(self, rows: Rows) -> Rows: ...


@hf.requires("kv_heads % gen_tp == 0")
class Grouped(Model):
    def __init__(self, heads: int, layers: int, kv_heads: int) -> None: ...


@hf.requires("layers % dp == 0")
class Shared(Model):
    """What it shares out over the replicas is no matter of how the model is cut."""


@hf.dataflow
def modeled(rows: Rows, model: Model) -> Rows:
    return model.score(rows)


@given(st.integers(1, 32), st.integers(1, 32), st.sampled_from([(1, 8), (2, 4), (4, 2), (2, 2), (1, 16)]))
def test_models_are_divisible_by_their_mesh(heads: int, layers: int, shape: tuple[int, int]) -> None:
    pp, tp = shape
    pool = hf.ResourcePool([16])

    def asks(mesh: hf.Mesh) -> Report:
        return modeled.check(hf.Deployment(model=hf.place(Model, heads, layers, pool=pool, mesh=mesh)), {B: 240})

    report = asks(hf.Mesh(pp=pp, dp=16 // (pp * tp), tp=tp))
    assert report.codes == ("HF512",) * ((heads % tp > 0) + (layers % pp > 0))
    for line in (line for finding in report for line in finding.help):
        for mesh in MESH.findall(line):
            assert asks(eval(mesh, {"hf": hf})).findings == ()


def test_a_class_inherits_requirements() -> None:
    place = hf.place(Grouped, 16, 2, kv_heads=6, pool=hf.ResourcePool([8]), mesh=hf.Mesh(tp=8, gen_tp=4))
    [finding] = modeled.check(hf.Deployment(model=place), {B: 64}).findings
    assert finding.message == "role 'model' requires kv_heads % gen_tp == 0, but kv_heads = 6 and gen_tp = 4: 6 % 4 = 2"
    assert "gen_tp=2" in finding.help[0]
    place = hf.place(Grouped, 12, 2, kv_heads=8, pool=hf.ResourcePool([8]), mesh=hf.Mesh(tp=8))
    [finding] = modeled.check(hf.Deployment(model=place), {B: 64}).findings
    assert finding.message.startswith("role 'model' requires heads % tp == 0, but")
    assert finding.related[0].text == "declared with requires('heads % tp == 0')"
    lines = Path(finding.related[0].span.file).read_text("utf-8").splitlines()
    assert lines[finding.related[0].span.line - 1].startswith('@hf.requires("heads')


def test_methods_name_sizes_of_the_mesh() -> None:
    mesh = hf.Mesh(tp=8, gen_tp=2)
    deployment = hf.Deployment(model=hf.place(Model, 8, 1, pool=hf.ResourcePool([8]), mesh=mesh))
    assert modeled.check(deployment, {B: 32}).ok
    [finding] = modeled.check(deployment, {B: 31}).findings
    assert finding.message == (
        "'model.score' requires B >= world_size * micro_dp, but B = 31 and world_size * micro_dp = 32, "
        "with world_size = 8 and micro_dp = 4"
    )
    assert modeled.check(None, {B: 31}).ok  # unplaced, nothing is known of the mesh


@hf.requires("B % tp == 0")
class Named(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def score(self, rows: Rows) -> Rows: ...


@hf.dataflow
def naming(rows: Rows, a: Named, b: Named) -> tuple[Rows, Rows]:
    return a.score(rows), b.score(rows)


def test_the_nearest_meshes_that_fill_the_pool_are_offered() -> None:
    def helped(role: type[Model], slots: int, heads: int, layers: int, mesh: hf.Mesh) -> tuple[str, ...]:
        place = hf.place(role, heads, layers, pool=hf.ResourcePool([slots]), mesh=mesh)
        [finding] = modeled.check(hf.Deployment(model=place), ROWS).findings
        assert finding.code == "HF512"
        return finding.help

    meshes = "hf.Mesh(dp=12, tp=2) or hf.Mesh(dp=6, tp=4) or hf.Mesh(dp=24)"
    works = "heads % tp == 0 then holds and the pool is filled"
    assert helped(Model, 24, 8, 1, hf.Mesh(dp=8, tp=3)) == (f"use {meshes}: {works}",)
    meshes = "hf.Mesh(pp=2, dp=3, tp=6) or hf.Mesh(pp=2, dp=6, tp=3) or hf.Mesh(pp=2, dp=9, tp=2)"  # none with tp=4
    assert helped(Model, 36, 12, 2, hf.Mesh(pp=2, dp=2, tp=9)) == (f"use {meshes}: {works}",)
    assert helped(Shared, 8, 8, 1, hf.Mesh(dp=2, tp=4)) == ()


def test_a_class_knows_no_dims() -> None:
    pool = hf.ResourcePool([2])
    [finding] = naming.check(hf.Deployment(a=hf.place(Named, pool=pool), b=hf.place(Named, pool=pool)), {B: 4}).findings
    assert finding.code == "HF323"
    assert "'B' is neither a number of the role's config nor a size of its mesh" in finding.message


def test_a_number_that_is_none() -> None:
    wrong: Any = float("nan")
    deployment = hf.Deployment(model=hf.place(Model, wrong, 24, pool=hf.ResourcePool([8])))
    [finding] = modeled.check(deployment, {B: 64}).findings
    assert finding.code == "HF540"
    assert "argument 'heads' of Model is annotated int but is given the float nan" in finding.message


def test_a_role_that_cannot_be_built_is_one_mistake() -> None:
    wrong: Any = Model
    deployment = hf.Deployment(model=hf.place(wrong, pool=hf.ResourcePool([8]), mesh=hf.Mesh(tp=8)))
    assert modeled.check(deployment, {B: 64}).codes == ("HF516",)


def test_the_check_is_asked_by_compile_and_by_an_experiment() -> None:
    deployment = hf.Deployment(a=hf.place(Role, pool=hf.ResourcePool([8], name="p"), gpu_memory="60%"))
    small = hf.Cluster(hf.Nodes(1, gpus=4, gpu_memory_gib=80, cpus=8))
    with pytest.raises(hf.CheckError) as caught:
        one.compile(deployment, ROWS, small)
    assert caught.value.code == "HF502"
    assert hf.Experiment(one, deployment, {B: 8}, cluster=small).check().codes == ("HF502",)
    assert "a (Role, Mesh(pp=1 dp=8 tp=1), 60% of each GPU)" in str(one.compile(deployment, ROWS))


@hf.requires("layers % dp == 0")
class Staged(Role):
    def __init__(self, layers: int) -> None: ...


def test_a_mesh_that_the_class_does_not_take_is_not_offered() -> None:
    def helped(layers: int) -> tuple[str, ...]:
        place = hf.place(Staged, layers, pool=hf.ResourcePool([8]), mesh=hf.Mesh(dp=1, tp=2))
        [finding] = one.check(hf.Deployment(a=place), ROWS).findings
        assert finding.code == "HF501"
        return finding.help

    assert helped(8)[0] == "set dp to 4: 1 * 4 * 2 = 8"
    assert not any("set dp" in line for line in helped(6))


PAIR = hf.Mesh(dp=4, tp=2)
LARGER = "give pool 'x' 8 slots: processes [4, 4]"


def test_a_pool_that_is_smaller_than_its_mesh_can_grow_where_the_cluster_has_room() -> None:
    def helped(nodes: int | None, pool: ResourcePool, **others: ResourcePool) -> tuple[str, ...]:
        places = {name: hf.place(Role, pool=place) for name, place in others.items()}
        cluster = None if nodes is None else hf.Cluster(hf.Nodes(nodes, gpus=4, gpu_memory_gib=80, cpus=64))
        flow = two if others else one
        report = flow.check(hf.Deployment(a=hf.place(Role, pool=pool, mesh=PAIR), **places), ROWS, cluster=cluster)
        [finding] = [finding for finding in report if finding.code == "HF501"]
        return finding.help

    four = hf.ResourcePool([4], name="x")
    assert helped(2, four) == ("set dp to 2: 1 * 2 * 2 = 4", LARGER)
    assert LARGER not in helped(1, four), "no room"
    assert LARGER not in helped(None, four), "a cluster that is not known"
    assert LARGER in helped(3, four, b=hf.ResourcePool([4], name="y"))
    assert LARGER not in helped(2, four, b=hf.ResourcePool([4], name="y")), "the other pool needs the node"
    assert LARGER not in helped(3, four, b=four), "shared: the other role has 4 ranks"
    left, right = hf.ResourcePool([4, 4], name="whole").split([4, 4])
    assert not any("slots: processes" in line for line in helped(4, left, b=right)), "a part of another pool"


def test_a_pool_that_is_too_small_says_which_pools_fit() -> None:
    def reported(mesh: hf.Mesh, *, shared: bool = False) -> hf.Finding:
        pool = hf.ResourcePool([3], name="x")
        other = {"b": hf.place(Role, pool=pool)} if shared else {}
        report = (two if shared else one).check(hf.Deployment(a=hf.place(Role, pool=pool, mesh=mesh), **other), ROWS)
        [finding] = [finding for finding in report if finding.code == "HF501"]
        return finding

    multiples = "; with another dp, a pool whose slots are a multiple of pp * tp = 2"
    shared = reported(hf.Mesh(dp=2, tp=2), shared=True)
    assert shared.notes == (f"this mesh fits a pool of 4 slots{multiples}",)
    alone = reported(hf.Mesh(dp=8))
    assert alone.notes == ("this mesh fits a pool of 8 slots; without mesh=, a role fits any pool",)


def test_processes_without_gpus_stay_on_their_node() -> None:
    pool = hf.ResourcePool([2], use_gpu=False, name="x")
    [finding] = one.check(hf.Deployment(a=hf.place(Role, pool=pool, mesh=hf.Mesh(tp=4))), ROWS).findings
    assert finding.help[-1] == "give pool 'x' 4 slots: processes [4]"


def test_where_dp_cannot_fill_a_pool_other_slices_do_or_another_pool() -> None:
    def helped(processes: list[int], mesh: hf.Mesh, gpus: int | None = None) -> tuple[str, ...]:
        cluster = None if gpus is None else hf.Cluster(hf.Nodes(1, gpus=gpus, gpu_memory_gib=80, cpus=64))
        place = hf.place(Role, pool=hf.ResourcePool(processes, name="x"), mesh=mesh)
        [finding] = one.check(hf.Deployment(a=place), ROWS, cluster=cluster).findings
        assert finding.code == "HF501"
        return finding.help

    two, filled = "give pool 'x' 2 slots: processes [2]", ": the pool is then filled"
    assert helped([1], hf.Mesh(tp=2)) == (f"use hf.Mesh(){filled}", two), "[1, 1] would cut tp"
    assert helped([1], hf.Mesh(tp=2), gpus=2)[-1] == "give pool 'x' 2 slots: processes [1, 1]", "both on one node"
    assert helped([1], hf.Mesh(tp=2), gpus=1) == (f"use hf.Mesh(){filled}",), "no room"
    split = "split the pool: pool.split([4, 2])"
    assert helped([6], hf.Mesh(tp=4)) == (
        f"use hf.Mesh(dp=2, tp=3) or hf.Mesh(dp=3, tp=2) or hf.Mesh(tp=6){filled}",
        split,
    )
    assert helped([4, 2], hf.Mesh(dp=2, tp=4))[-1] == "give pool 'x' 8 slots: processes [4, 4]"


def test_on_a_mesh_that_does_not_fill_its_pool_only_what_the_mesh_has_is_required() -> None:
    def codes(role: type[Model], heads: int, mesh: hf.Mesh) -> set[str]:
        place = hf.place(role, heads, 4, pool=hf.ResourcePool([8]), mesh=mesh)
        return set(modeled.check(hf.Deployment(model=place), ROWS).codes)

    assert codes(Model, 3, hf.Mesh(tp=2)) == {"HF501", "HF512"}
    assert codes(Shared, 3, hf.Mesh(dp=3)) == {"HF501"}, "what mends it gives another dp"
