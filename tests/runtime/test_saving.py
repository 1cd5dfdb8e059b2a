"""A run continues from what was saved as if it had never stopped; state that cannot be saved or loaded is reported."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import CheckpointError, HfError
from hfdsl.runtime.saving.sealed_json import sealed, unsealed
from hfdsl.runtime.saving.state_files import flatten_state, unflatten_state
from tests.runtime.saving_programs import Actor, Critic, Sieve, batch, deployment, learn, look

Backend = Literal["local", "ray"]


def values(result: Any) -> tuple[float, float]:
    return result.loss.value, result.weight.value


def straight(steps: int, backend: Backend) -> tuple[list[Any], list[float]]:
    place = deployment()
    with learn.compile(place).launch(backend, seed=7) as running:
        looking = running.also(look.compile(place))
        looking.step(batch(100))
        metrics = [values(running.step(batch(i))) for i in range(steps)]
        return metrics, looking.step(batch(100)).x.tensor.tolist()


def stopped(
    first: int, steps: int, backend: Backend, folder: Path, *, own_pools: bool
) -> tuple[list[Any], list[float]]:
    """The same in two launches, the second perhaps on other pools."""
    place = deployment()
    with learn.compile(place).launch(backend, seed=7) as running:
        running.also(look.compile(place)).step(batch(100))
        metrics = [values(running.step(batch(i))) for i in range(first)]
        running.save(folder)
    place = deployment(own_pools=own_pools)
    with learn.compile(place).launch(backend, seed=7) as running:
        running.load(folder)
        assert running.steps == first
        metrics += [values(running.step(batch(i))) for i in range(first, steps)]
        looking = running.also(look.compile(place))  # a plan that comes after the load continues too
        assert looking.steps == 1
        return metrics, looking.step(batch(100)).x.tensor.tolist()


@pytest.mark.parametrize("own_pools", [False, True])
def test_a_run_goes_on_to_the_bit(tmp_path: Path, own_pools: bool) -> None:
    assert stopped(3, 6, "local", tmp_path, own_pools=own_pools) == straight(6, "local")


@pytest.mark.nightly
def test_a_run_goes_on_to_the_bit_on_ray(tmp_path: Path, ray_cluster: Any) -> None:
    assert stopped(2, 4, "ray", tmp_path, own_pools=True) == straight(4, "local")


def test_several_states_are_written_behind_the_steps_at_once(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "abc"]
    with learn.compile(deployment()).launch("local", seed=7) as running:
        savings = []
        for number, place in enumerate(places):
            place.mkdir()
            savings.append(running.save_in_background(place))
            running.step(batch(number))
        for saving in savings:
            saving.wait()
            assert saving.done()
            saving.wait()  # what is whole stays so
    for number, place in enumerate(places):
        with learn.compile(deployment()).launch("local", seed=7) as running:
            running.load(place)
            assert running.steps == number


def test_a_state_of_a_run_that_is_closed_is_not_called_whole(tmp_path: Path) -> None:
    with learn.compile(deployment()).launch("local", seed=7) as running:
        saving = running.save_in_background(tmp_path)
    with pytest.raises(HfError, match="HF808: the run was closed before its state was written"):
        saving.wait()


def test_a_folder_that_is_not_empty_is_reported(tmp_path: Path) -> None:
    (tmp_path / "actor-0.safetensors").write_bytes(b"left")
    with (
        learn.compile(deployment()).launch("local", seed=7) as running,
        pytest.raises(CheckpointError, match=r"HF906: .* it is not empty"),
    ):
        running.save(tmp_path)


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    new = tmp_path / "runs" / "1" / "state"
    with learn.compile(deployment()).launch("local", seed=7) as running:
        running.step(batch(0))
        running.save(str(new))
        running.save_in_background(new.with_name("another")).wait()
    with learn.compile(deployment()).launch("local", seed=7) as running:
        running.load(new)
        assert running.steps == 1


@pytest.mark.parametrize("below", ["", "state", "1/state"])
def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"left")
    folder = tmp_path / "file" / below if below else tmp_path / "file"
    with learn.compile(deployment()).launch("local", seed=7) as running:
        for save in (running.save, running.save_in_background):
            with pytest.raises(CheckpointError, match=f"HF906: the state cannot be written to {folder}: "):
                save(folder)
        running.step(batch(0))  # nothing is broken


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with learn.compile(deployment()).launch("local", seed=7) as running:
        for folder in (tmp_path, tmp_path / "state"):
            with pytest.raises(CheckpointError, match=r"HF906: .* cannot be written"):
                running.save(folder)
    tmp_path.chmod(0o700)


def test_replicas_write_one_file_and_others_their_own(tmp_path: Path) -> None:
    with learn.compile(deployment()).launch(seed=7) as running:
        running.step(batch(0))
        running.save(tmp_path)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [
        "actor-rank-0.safetensors",
        "critic-rank-0.safetensors",
        "critic-rank-1.safetensors",
        "state.json",
    ]
    assert json.loads((tmp_path / "state.json").read_text())["steps"] == {"learn": 1}


def load(folder: Path, place: hf.Deployment, seed: int = 7) -> str:
    with learn.compile(place).launch(seed=seed) as running:
        with pytest.raises(CheckpointError) as caught:
            running.load(folder)
        return str(caught.value).replace(str(folder), "DIR")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with learn.compile(deployment()).launch(seed=7) as running:
        running.step(batch(0))
        running.save(tmp_path)
    return tmp_path


def test_another_mesh_or_seed_is_refused(saved: Path) -> None:
    assert load(saved, deployment(actors=4)) == (
        "HF905: the state comes from another run: it has 'actor' on Mesh(pp=1 dp=2 tp=1) instead of "
        "Mesh(pp=1 dp=4 tp=1); launch with the seed, the roles and the meshes that were saved"
    )
    assert "it has seed 7 instead of 8" in load(saved, deployment(), seed=8)


def test_a_save_that_did_not_end_and_a_folder_that_is_not_there_are_told_apart(saved: Path) -> None:
    (saved / "state.json").unlink()
    assert load(saved, deployment()) == (
        "HF906: the state cannot be read: DIR has no state.json, which a save writes last: that save did not end; load "
        "an earlier one"
    )
    assert load(saved / "1", deployment()) == "HF906: the state cannot be read: there is no folder DIR"


def test_a_state_that_is_not_there_is_reported(saved: Path) -> None:
    manifest = unsealed((saved / "state.json").read_text())
    del manifest["roles"]["critic"]
    (saved / "state.json").write_text(sealed(manifest))
    assert load(saved, deployment()) == "HF905: the state has no part of role 'critic' (Critic)"


@pytest.mark.parametrize("harm", ["cut", "flip", "gone", "manifest"])
def test_a_damaged_file_is_reported(saved: Path, harm: str) -> None:
    file = saved / ("state.json" if harm == "manifest" else "critic-rank-1.safetensors")
    content = bytearray(file.read_bytes())
    if harm == "gone":
        file.unlink()
    elif harm == "flip":
        content[-1] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[:-9])
    message = load(saved, deployment())
    assert message.startswith("HF906: ")
    assert file.name in message


def test_a_load_that_failed_breaks_the_run(saved: Path) -> None:
    (saved / "critic-rank-1.safetensors").unlink()
    with learn.compile(deployment()).launch(seed=7) as running:
        with pytest.raises(CheckpointError):
            running.load(saved)
        with pytest.raises(HfError, match="HF808: the run of 'learn' has been broken since a load of"):
            running.step(batch(0))


# -- what roles keep


class Forgetful(Actor):
    """Trains, and says that it writes its policy, but keeps nothing."""

    state = None  # type: ignore[assignment]  # the mistake
    load_state = None  # type: ignore[assignment]  # the mistake


class Silent(Sieve):
    def __init__(self) -> None:
        self.adam = torch.optim.Adam([torch.zeros(1, requires_grad=True)])


class Odd(Critic):
    def state(self) -> dict[str, Any]:
        return {"total": {"a": [1, (torch.float32,)]}}


class Failing(Critic):
    def state(self) -> dict[str, Any]:
        raise KeyError("total")


def refused(tmp_path: Path, **roles: type[hf.Worker]) -> str:
    classes: dict[str, Any] = {"actor": Actor, "critic": Critic, "sieve": Sieve, **roles}
    pool = hf.ResourcePool([1], use_gpu=False)
    place = hf.Deployment(**{name: hf.place(role, pool=pool) for name, role in classes.items()})
    with learn.compile(place).launch() as running, pytest.raises(HfError) as caught:
        running.save(tmp_path)
    assert not (tmp_path / "state.json").exists()
    return str(caught.value)


def test_a_role_that_trains_and_keeps_nothing_is_reported(tmp_path: Path) -> None:
    assert refused(tmp_path, actor=Forgetful) == (
        "HF908: role 'actor' (Forgetful) 'update' writes its state 'policy', and a checkpoint needs both state() and "
        "load_state(state)"
    )
    assert "role 'sieve' (Silent) has an optimizer, self.adam, and" in refused(tmp_path, sieve=Silent)


def test_a_state_that_cannot_be_kept_is_reported(tmp_path: Path) -> None:
    assert refused(tmp_path, critic=Odd).startswith(
        "HF908: the state of role 'critic' (Odd) holds a dtype at 'total/a/1/0'; it takes tensors"
    )
    assert refused(tmp_path, critic=Failing).startswith("HF806: 'critic.state (Failing)' raised on rank 0: KeyError")


DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8]
KEYS = st.one_of(st.text(max_size=4), st.integers(-3, 3), st.sampled_from(["$tensor", "$dict", "a/b"]))
TENSORS = st.builds(
    lambda shape, dtype: torch.full(shape, 3).to(dtype),
    st.lists(st.integers(0, 3), max_size=2),
    st.sampled_from(DTYPES),
)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4), TENSORS)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.dtype == other.dtype and value.shape == other.shape and torch.equal(value, other))
    if isinstance(value, dict):
        return list(value) == list(other) and all(same(value[key], other[key]) for key in value)
    if isinstance(value, (list, tuple)):
        return type(value) is type(other) and len(value) == len(other) and all(map(same, value, other))
    return type(value) is type(other) and bool(value == other)


@given(STATES)
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    apart = flatten_state(state, "it")
    assert same(state, unflatten_state(apart))
    assert apart.digest() == flatten_state(state, "it").digest()


def test_numbers_that_are_none_come_back() -> None:
    [number, endless] = unflatten_state(flatten_state([math.nan, math.inf], "it"))
    assert math.isnan(number)
    assert endless == math.inf


def test_views_of_one_memory_are_kept_apart() -> None:
    storage = torch.arange(6.0)
    back = unflatten_state(flatten_state({"all": storage, "part": storage[2:4], "again": storage}, "it"))
    assert back["part"].tolist() == [2, 3]
    assert back["again"] is back["all"]
