"""Transfer protocols, and how values lie on a mesh."""

from __future__ import annotations

from typing import cast

from hypothesis import strategies as st

from hfdsl.protocols.mesh import AXES, Mesh
from hfdsl.protocols.placement import At, AxisPlacement, Partial, Replicated, Sharded, Varying
from hfdsl.protocols.predefined import PREDEFINED
from hfdsl.protocols.protocol import SYSTEMS, Pick, Protocol
from hfdsl.testing.arguments import refused


@st.composite
def protocols(draw: st.DrawFn, *, lawful: bool = True) -> Protocol:
    """The predefined protocols, and others that split over some axes and join them again.

    Protocols that are not ``lawful`` pick one coordinate of an axis that they split, or join replicas.

    >>> from hypothesis import given, settings
    >>> from hfdsl.testing import check_laws
    >>> @settings(max_examples=5, deadline=None)
    ... @given(protocols())
    ... def keep_their_laws(protocol: Protocol) -> None:
    ...     check_laws(protocol, max_examples=5)
    >>> keep_their_laws()
    """
    if draw(st.booleans()):
        return draw(st.sampled_from(list(PREDEFINED.values())))
    axes = draw(st.permutations(sorted(draw(st.sampled_from(SYSTEMS)))))
    split = axes[: draw(st.integers(1, len(axes)))]

    def pick(axis: str) -> Pick:
        if lawful:
            return "join" if axis in split else draw(st.sampled_from(("first", "last", 0)))
        return cast(Pick, draw(st.sampled_from(("join", "first", "last", 0, 1))))

    return Protocol("MINE", split=tuple(split), collect={axis: pick(axis) for axis in draw(st.permutations(axes))})


def placements(mesh: Mesh | None = None) -> st.SearchStrategy[dict[str, AxisPlacement]]:
    """How a body leaves its output along some axes of a mesh, as ``hf.register(leaves=...)`` takes it.

    Raises:
        DefinitionError: HF921 for what is not a mesh.

    >>> from hypothesis import find
    >>> find(placements(), lambda leaves: leaves.get("tp") == Partial("sum"))["tp"]
    Partial(op='sum')
    """
    if mesh is not None and not isinstance(mesh, Mesh):
        raise refused("placements", "mesh", "an hf.Mesh", mesh)
    return st.fixed_dictionaries({}, optional={axis: _along(getattr(mesh, axis, 2)) for axis in AXES})


def _along(size: int) -> st.SearchStrategy[AxisPlacement]:
    alike: list[AxisPlacement] = [Replicated(), Sharded(0), Varying(), Sharded(1), Partial("sum"), Partial("max")]
    return st.one_of(st.sampled_from(alike), st.integers(-1, size - 1).map(At))
