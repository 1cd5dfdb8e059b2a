"""What a verified sync compares: the weights that it copies, in the dtype of the copy, without buffers and pad rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import HfWarning, SyncError
from hfdsl.protocols.layouts import Layout, Replicas
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from tests.runtime import copied_programs as p

SYNC = VerifiedSync("policy", "actor", "engine")
ALL = ("embedding", "bias")


def running(
    plan: hf.Dataflow[Any, Any], actor: tuple[Any, ...] = (), engine: tuple[Any, ...] = (), role: Any = p.Holding
) -> Any:
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(p.Actor, *actor, pool=pools[0]), engine=hf.place(role, *engine, pool=pools[1])
    )
    return plan.compile(deployment).launch("local")


@pytest.mark.parametrize("role", [p.Engine, p.Holding])
def test_an_engine_that_is_empty_before_its_first_sync_is_no_mistake(role: Any) -> None:
    """Whatever its dtype, which nobody knows before."""
    with running(p.synced, engine=((), (), ALL, "bfloat16"), role=role) as run:
        assert run.verify("policy").skipped == {SYNC: "'engine' has not been synced"}
        with run.verifying():
            pass
        with run.verifying():
            run.step()
        assert run.verify("policy").compared == (SYNC,)


def test_an_export_that_is_gone_is_compared_from_the_next_sync_on() -> None:
    says = "'engine' held its weights in other dtypes, or none, before this sync"
    with running(p.learned, engine=((), (), ALL, "bfloat16")) as run:
        with pytest.warns(HfWarning, match=f"HF772: .* is not verified: {says}"), run.verifying():
            run.step()
        with run.verifying():
            run.step()
        assert run.verify("policy").compared == (SYNC,)
        run._processes.backend.of_workers("engine", lambda worker: worker.table["bias"].add_(1))
        with pytest.raises(SyncError, match="values of 'bias'"):
            run.verify("policy")


@pytest.mark.parametrize("role", [p.Engine, p.Holding])
@pytest.mark.parametrize(
    ("actor", "engine"),
    [
        ((ALL, ("mean",)), ()),
        ((ALL,), ((), ("scale",))),
        ((ALL, ("mean",)), ((), ("scale",))),
        (((), ("mean",)), (ALL, ("scale",))),
        ((ALL,), (("bias",), (), ("bias",))),
        ((), (("bias",), ("scale",), ("bias",))),
    ],
    ids=["exported", "held", "both", "stated by the engine", "subset", "subset with a buffer"],
)
def test_what_a_sync_does_not_copy_is_not_compared(role: Any, actor: Any, engine: Any) -> None:
    with running(p.synced, actor, engine, role) as run:
        run.step()
        assert run.verify("policy").compared == (SYNC,)
        with run.verifying():
            run.step()
        run._processes.backend.of_workers("engine", lambda worker: worker.table["bias"].add_(1))
        with pytest.raises(SyncError, match="values of 'bias'"):
            run.verify("policy")


@pytest.mark.parametrize(
    ("actor", "engine", "says"),
    [
        ((), ((), (), ("bias",)), "'actor' holds 'embedding' of 'policy', and 'engine' does not"),
        ((ALL,), ((), (), ("bias",)), "'actor' holds 'embedding' of 'policy', and 'engine' does not"),
        (((), ("mean", "count")), (), "'actor' holds 'mean' and 1 more weights of 'policy', and 'engine' does not"),
        ((), ((), ("scale",)), "'engine' holds 'scale' of 'policy', and 'actor' does not"),
    ],
)
@pytest.mark.parametrize("role", [p.Engine, p.Holding])
def test_a_weight_that_nobody_states_and_one_side_lacks_is_reported(
    actor: Any, engine: Any, says: str, role: Any
) -> None:
    """Perhaps it should be copied; others are compared."""
    with running(p.synced, actor, engine, role) as run:
        run.step()
        says += "; 'engine' does not state the parameters that it loads"
        assert run.verify("policy").skipped == {SYNC: says}
        run._processes.backend.of_workers("engine", lambda worker: worker.table["bias"].add_(1))
        with pytest.raises(SyncError, match="values of 'bias'"):
            run.verify("policy")


@pytest.mark.parametrize("role", [p.Engine, p.Holding])
@pytest.mark.parametrize("loads", [("bias",), ()], ids=["one of two", "none"])
def test_a_parameter_that_an_engine_states_and_lacks_is_a_mistake(role: Any, loads: tuple[str, ...]) -> None:
    with running(p.synced, engine=(ALL, (), loads), role=role) as run:
        run.step()
        with pytest.raises(SyncError, match="'actor' holds 'embedding' of 'policy', and 'engine' does not"):
            run.verify("policy")


class Renaming(p.Engine):
    def state(self) -> dict[str, Any]:
        return {f"model.{name}": weight for name, weight in self.table.items()}


class Slicing(p.Engine):
    def state(self) -> dict[str, Any]:
        return {name: weight.chunk(2)[self.rank] for name, weight in self.table.items()}


@pytest.mark.parametrize(("role", "own"), [(Renaming, "names"), (Slicing, "shapes")])
def test_a_state_in_a_form_of_its_own_is_no_mistake(role: Any, own: str) -> None:
    """Whatever the role states: its state is for checkpoints."""
    says = f"the state() of 'engine' has other {own} than 'actor' exports, and it has no method held_weights(state)"
    with running(p.synced, engine=(ALL,), role=role) as run:
        run.step()
        (reason,) = run.verify("policy").skipped.values()
        assert reason.startswith(says)


def test_buffers_that_a_sync_in_parts_does_not_send_are_not_compared() -> None:
    """Both sides have one of the same name."""

    class Buffered(p.PaddedActor):
        @hf.register(hf.Dispatch.ONE_TO_ALL)
        @hf.exports("policy", layout=lambda mesh, layout, pads: layout)
        def weights(self) -> dict[str, Any]:
            return {**self.table, "scale": torch.ones(2)}

        @staticmethod
        def state_parameters(layout: Layout, pads: str) -> Any:
            return {"policy": p.PARAMETERS}

    class Own(p.PaddedEngine):
        def held_weights(self, state: str) -> dict[str, Any]:
            return {**self.table, "scale": torch.zeros(2)}

    with padded(p.PADDED, Replicas(), "absent", "absent", Buffered, Own) as run:
        with pytest.warns(HfWarning, match="HF731"):
            run.step()
        assert run.verify("policy").compared == (SYNC,)
        with run.verifying():
            run.step()


# -- pad rows


def padded(
    source: Layout,
    target: Layout,
    exports: str,
    holds: str,
    actor: Any = p.PaddedActor,
    engine: Any = p.PaddedEngine,
) -> Any:
    pools = [hf.ResourcePool([4], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(actor, source, exports, pool=pools[0], mesh=p.places(source)),
        engine=hf.place(engine, target, holds, pool=pools[1], mesh=p.places(target)),
    )
    return p.padded.compile(deployment).launch("local")


@pytest.mark.parametrize("exports", ["absent", "empty", "alone"])
@pytest.mark.parametrize("holds", ["absent", "empty", "alone", "all"])
@pytest.mark.parametrize("layouts", [(p.PADDED, p.PADDED), (p.PADDED, Replicas()), (Replicas(), p.PADDED)])
def test_pad_rows_are_not_compared(exports: str, holds: str, layouts: tuple[Layout, Layout]) -> None:
    """Whether a rank that has pad rows alone has no tensor, an empty one or its pad rows."""
    with padded(*layouts, exports, holds) as run:
        run.step()
        assert run.verify("policy").compared == (SYNC,)
        with run.verifying():
            run.step()
        run._processes.backend.of_workers("engine", lambda worker: worker.table.get("bias", torch.ones(1)).add_(1))
        with pytest.raises(SyncError, match="values of 'bias'"):
            run.verify("policy")
