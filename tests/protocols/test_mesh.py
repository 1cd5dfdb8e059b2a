"""Meshes: numbering, and the fold of generation groups into training groups."""

from fractions import Fraction
from itertools import permutations, product
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import ProtocolError, ResourceError
from hfdsl.protocols.mesh import AXES, Coordinates, Mesh, check_world, mesh_or_flat

ORDERS = list(permutations(AXES))


@st.composite
def meshes(draw: st.DrawFn, most: int = 4) -> Mesh:
    pp, dp, tp = (draw(st.integers(1, most)) for _ in AXES)
    gen_pp = draw(st.sampled_from([None, *(n for n in range(1, pp + 1) if pp % n == 0)]))
    gen_tp = draw(st.sampled_from([None, *(n for n in range(1, tp + 1) if tp % n == 0)]))
    return Mesh(pp=pp, dp=dp, tp=tp, gen_pp=gen_pp, gen_tp=gen_tp, order=draw(st.sampled_from(ORDERS)))


@given(meshes())
def test_ranks_are_numbered_outermost_axis_first(mesh: Mesh) -> None:
    listed = list(product(*(range(getattr(mesh, axis)) for axis in mesh.order)))
    for rank, position in enumerate(listed):
        at = dict(zip(mesh.order, position, strict=True))
        assert mesh.coordinates(rank) == Coordinates(**at)
        assert mesh.rank(**at) == rank
    assert mesh.world_size == len(listed)


@given(meshes())
def test_the_generation_coordinates_tell_all_ranks_apart(mesh: Mesh) -> None:
    seen = set()
    for rank in range(mesh.world_size):
        at = mesh.coordinates(rank)
        place = (at.dp, mesh.micro_dp_rank(at), mesh.gen_pp_rank(at), mesh.gen_tp_rank(at))
        sizes = (mesh.dp, mesh.micro_dp_size, mesh.gen_pp_size, mesh.gen_tp_size)
        assert all(0 <= index < size for index, size in zip(place, sizes, strict=True))
        seen.add(place)
    assert len(seen) == mesh.world_size


@given(meshes())
def test_a_training_shard_lies_inside_the_generation_shard_of_its_rank(mesh: Mesh) -> None:
    def share(index: int, of: int) -> tuple[Fraction, Fraction]:
        return Fraction(index, of), Fraction(index + 1, of)

    for rank in range(mesh.world_size):
        at = mesh.coordinates(rank)
        for training, generation in (
            (share(at.tp, mesh.tp), share(mesh.gen_tp_rank(at), mesh.gen_tp_size)),
            (share(at.pp, mesh.pp), share(mesh.gen_pp_rank(at), mesh.gen_pp_size)),
        ):
            assert generation[0] <= training[0]
            assert training[1] <= generation[1]


def test_sizes_of_generation_default_to_training() -> None:
    mesh = Mesh(pp=2, tp=4)
    assert (mesh.gen_pp_size, mesh.gen_tp_size, mesh.micro_dp_size) == (2, 4, 1)
    mesh = Mesh(pp=6, tp=4, gen_pp=3, gen_tp=1)
    assert (mesh.gen_pp_size, mesh.gen_tp_size, mesh.micro_dp_size) == (3, 1, 8)


def test_a_generation_size_that_does_not_divide_names_the_divisors() -> None:
    with pytest.raises(ProtocolError, match=r"HF414: gen_tp=3 does not divide tp=8.*1, 2, 4, 8"):
        Mesh(tp=8, gen_tp=3)


@pytest.mark.parametrize("size", [0, -1, 1.0, True, "2"])
def test_a_size_that_is_no_count_is_refused(size: object) -> None:
    with pytest.raises(ResourceError, match=r"HF501: mesh axis 'dp'"):
        Mesh(dp=size)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, True, "2"])
def test_a_size_of_generation_that_is_no_count_is_refused(size: object) -> None:
    with pytest.raises(ResourceError, match=r"HF501: mesh axis 'gen_tp' needs a whole number of at least 1"):
        Mesh(tp=2, gen_tp=size)  # type: ignore[arg-type]


def test_only_sizes_of_generation_may_go_unsaid() -> None:
    with pytest.raises(ResourceError, match=r"HF501: mesh axis 'tp' .* got None"):
        Mesh(tp=None)  # type: ignore[arg-type]


def test_meshes_of_equal_axes_are_equal_values() -> None:
    listed: Any = ["tp", "dp", "pp"]
    assert Mesh(dp=2, order=listed) == Mesh(dp=2, order=("tp", "dp", "pp"))
    assert hash(Mesh(dp=2, order=listed)) == hash(Mesh(dp=2, order=("tp", "dp", "pp")))


def test_a_mesh_names_the_sizes_of_generation_that_were_given() -> None:
    assert str(Mesh(dp=2, tp=4)) == "Mesh(pp=1 dp=2 tp=4)"
    assert str(Mesh(pp=2, tp=4, gen_tp=2)) == "Mesh(pp=2 dp=1 tp=4 gen_tp=2)"
    assert str(Mesh(pp=2, dp=3, tp=4).coordinates(23)) == "pp=1 dp=2 tp=3"


def test_an_order_that_is_no_permutation_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"HF409"):
        Mesh(order=("pp", "dp"))


def test_a_rank_or_coordinate_outside_the_mesh_is_refused() -> None:
    with pytest.raises(ResourceError, match=r"HF513: rank 4 .* 0\.\.3"):
        Mesh(dp=4).coordinates(4)
    with pytest.raises(ResourceError, match=r"HF513: rank -1 "):
        Mesh(dp=4).coordinates(-1)
    with pytest.raises(ResourceError, match=r"HF513: tp=2 is not on .*, where tp is 0\.\.1$"):
        Mesh(tp=2).rank(tp=2)
    with pytest.raises(ResourceError, match=r"HF513: dp=-1 "):
        Mesh(tp=2).rank(dp=-1)


def test_a_mesh_that_does_not_fit_its_pool_says_what_would() -> None:
    with pytest.raises(ResourceError, match=r"HF501.*16 ranks.*pool 'train' has 8; set dp to 2$"):
        check_world(Mesh(dp=4, tp=2, pp=2), 8, "pool 'train'")
    with pytest.raises(ResourceError, match=r"give it 6 ranks, or choose pp and tp whose product divides 7"):
        check_world(Mesh(tp=3), 7, "pool 'train'")
    with pytest.raises(ResourceError, match=r"give it 3 ranks, or"):
        check_world(Mesh(tp=3), 2, "pool 'train'")


def test_a_group_takes_a_mesh() -> None:
    wrong: Any = {"dp": 2}
    with pytest.raises(ResourceError, match=r"HF501: the group: .* takes an hf\.Mesh, such as hf\.Mesh\(dp=2\)"):
        mesh_or_flat(wrong, 2, "the group")
    with pytest.raises(ResourceError, match=r"such as hf\.Mesh\(dp=2, tp=2\), got 'dp=2'"):
        mesh_or_flat(cast("Any", "dp=2"), 2, "the group")
    assert mesh_or_flat(None, 3, "the group") == Mesh(dp=3)
    assert mesh_or_flat(Mesh(tp=3), 3, "the group") == Mesh(tp=3)
    with pytest.raises(ResourceError, match=r"HF501: .* lays out 3 ranks .*, but the group has 4"):
        mesh_or_flat(Mesh(tp=3), 4, "the group")
