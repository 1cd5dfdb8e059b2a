"""Meshes: numbering, and the fold of generation groups into training groups."""

from fractions import Fraction
from itertools import permutations, product
from typing import Any

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


def test_a_generation_size_that_does_not_divide_names_the_divisors() -> None:
    with pytest.raises(ProtocolError, match=r"HF414: gen_tp=3 does not divide tp=8.*1, 2, 4, 8"):
        Mesh(tp=8, gen_tp=3)


@pytest.mark.parametrize("size", [0, -1, 1.0, True, "2"])
def test_a_size_that_is_no_count_is_refused(size: object) -> None:
    with pytest.raises(ResourceError, match=r"HF501: mesh axis 'dp'"):
        Mesh(dp=size)  # type: ignore[arg-type]


def test_an_order_that_is_no_permutation_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"HF409"):
        Mesh(order=("pp", "dp"))


def test_a_rank_or_coordinate_outside_the_mesh_is_refused() -> None:
    with pytest.raises(ResourceError, match=r"HF513: rank 4 .* 0\.\.3"):
        Mesh(dp=4).coordinates(4)
    with pytest.raises(ResourceError, match=r"HF513: tp=2"):
        Mesh(tp=2).rank(tp=2)


def test_a_mesh_that_does_not_fit_its_pool_says_what_would() -> None:
    with pytest.raises(ResourceError, match=r"HF501.*16 ranks.*pool 'train' has 8; set dp to 2"):
        check_world(Mesh(dp=4, tp=2, pp=2), 8, "pool 'train'")
    with pytest.raises(ResourceError, match=r"give it 6 ranks, or choose pp and tp whose product divides 7"):
        check_world(Mesh(tp=3), 7, "pool 'train'")


def test_a_group_takes_a_mesh() -> None:
    wrong: Any = {"dp": 2}
    with pytest.raises(ResourceError, match=r"HF501: the group: .* takes an hf\.Mesh, such as hf\.Mesh\(dp=2\)"):
        mesh_or_flat(wrong, 2, "the group")
