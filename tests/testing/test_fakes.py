"""Fakes: the same place and check as the role, the declared shapes, and values that no split changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import WiringError
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.workers import config as c
from hfdsl.testing import fake, fake_batch, faked
from tests.testing import fake_roles as f

SIZES: dict[type[hf.Dim], int] = {f.B: 8, f.P: 3, f.R: 5}


def deployment(mesh: hf.Mesh | None = None) -> hf.Deployment:
    mesh = mesh or hf.Mesh(dp=2, tp=2)
    pool = hf.ResourcePool([mesh.world_size], use_gpu=False)
    return hf.Deployment(
        model=hf.place(f.Model, "no/such/file", heads=4, pool=pool, mesh=mesh),
        engine=hf.place(f.Engine, pool=pool, mesh=mesh),
    )


def stepped(where: hf.Deployment) -> Any:
    with f.whole.compile(faked(where, SIZES), SIZES).launch() as running:
        return running.step(fake_batch(f.Prompts, SIZES))


def test_every_column_is_as_it_is_declared() -> None:
    rollout, _, twice, numbers, loose = stepped(deployment())
    assert rollout.ids.tensor.shape == (8, 8)
    assert rollout.hidden.tensor.dtype is torch.bfloat16
    assert rollout.hidden.tensor.shape == (8, 5, 4)
    assert rollout.kinds.tensor.dtype is torch.uint8
    assert twice.x.tensor.shape == (16,)
    assert loose.tensor.shape == (8, 3)
    assert all(isinstance(text, str) for text in rollout.text.objects)
    assert rollout.hint is not None
    assert isinstance(numbers.count.value, int)
    assert 0 <= int(rollout.ids.tensor.min()) <= int(rollout.ids.tensor.max()) < 128


def test_masks_are_true_up_to_a_length_and_rows_differ() -> None:
    rollout = stepped(deployment())[0]
    lengths = rollout.mask.tensor.sum(1)
    assert all(row[:n].all() and n >= 1 for row, n in zip(rollout.mask.tensor, lengths, strict=True))
    assert len(set(lengths.tolist())) > 1
    ragged = [len(row) for row in rollout.tokens.rows]
    assert min(ragged) >= 1
    assert max(ragged) <= 5
    assert len({tuple(row) for row in rollout.ids.tensor.tolist()}) == 8


def test_objects_that_a_fake_is_given_are_handed_on() -> None:
    tasks = [{"answer": i} for i in range(8)]
    prompts = f.Prompts(ids=torch.zeros(8, 3, dtype=torch.int64), task=tasks)
    with f.whole.compile(faked(deployment(), SIZES), SIZES).launch() as running:
        assert running.step(prompts)[0].task.objects == tasks


def same(left: Any, right: Any) -> bool:
    pairs = zip(left.__hf_columns__.values(), right.__hf_columns__.values(), strict=True)
    return all(
        torch.equal(x, y)
        if isinstance(x, torch.Tensor)
        else x == y
        if not hasattr(x, "rows")
        else all(map(torch.equal, x.rows, y.rows))
        for x, y in pairs
    )


def test_no_split_changes_a_value() -> None:
    alone, *others = (stepped(deployment(hf.Mesh(dp=dp, tp=tp))) for dp, tp in ((1, 1), (4, 1), (2, 2)))
    for split_values in others:
        assert all(map(same, alone[:4], split_values[:4]))


def test_steps_and_nodes_differ() -> None:
    with f.whole.compile(faked(deployment(), SIZES), SIZES).launch() as running:
        first, second = (running.step(fake_batch(f.Prompts, SIZES)) for _ in range(2))
    assert not torch.equal(first[0].ids.tensor, second[0].ids.tensor)
    assert not torch.equal(first[0].ids.tensor, first[1].ids.tensor)


def test_it_is_checked_as_the_role_is() -> None:
    real = deployment()
    assert f.whole.check(faked(real), SIZES).codes == f.whole.check(real, SIZES).codes
    pool = hf.ResourcePool([2], use_gpu=False)
    wrong = hf.Deployment(model=hf.place(f.Model, "path", pool=pool), engine=hf.place(f.Engine, pool=pool))
    assert f.whole.check(faked(wrong), SIZES).codes == f.whole.check(wrong, SIZES).codes == ("HF516",)


def test_columns_can_be_given() -> None:
    model = fake(
        f.Model, dims=SIZES, columns={"hint": None, "kinds": lambda shape: torch.full(shape, 7).to(torch.uint8)}
    )
    rollout = model("path", heads=1).make(fake_batch(f.Prompts, SIZES))
    assert rollout.hint is None
    assert rollout.kinds.tensor.tolist() == [7] * 8


def test_a_seed_decides_where_no_dataflow_runs() -> None:
    prompts = fake_batch(f.Prompts, SIZES)
    first, reseeded, same_one = (fake(f.Model, dims=SIZES, seed=s)("", heads=1).make(prompts) for s in (0, 1, 0))
    assert same(first, same_one)
    assert not same(first, reseeded)


def test_mistakes_without_another_report_are_reported() -> None:
    with pytest.raises(WiringError) as failure:
        fake(f.Model)("path", heads=1).make(fake_batch(f.Prompts, SIZES))
    assert str(failure.value) == (
        "HF213: fake(Model).make makes Made, and nothing that it takes says how large R is: dims={R: ...}"
    )
    with pytest.raises(WiringError, match=r"HF213: fake_batch\(Made, dims\) needs dims=\{R: ...\}"):
        fake_batch(f.Made, {f.B: 2, f.P: 3})
    with pytest.raises(WiringError, match=r"HF202: role 'Model' has no method 'generate'; there are: "):
        fake(f.Model, seconds={"generate": 1.0})
    with pytest.raises(WiringError, match="HF202: no role 'modle' is placed; did you mean 'model'"):
        faked(deployment(), seconds={"modle.make": 1.0})
    with pytest.raises(WiringError, match="HF206: a fake knows no value of memoryview for the result of fake"):
        fake(f.Model)("path", heads=1).odd()


def test_plain_results_have_their_type() -> None:
    assert fake(f.Model)("path", heads=1).point() == f.Point(0, "text 0")


def test_it_takes_as_long_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    where = faked(deployment(), SIZES, seconds={"model.make": lambda rows: rows / 4, "engine.answer": 0.5})
    with f.whole.compile(where, SIZES).launch() as running:
        running.step(fake_batch(f.Prompts, SIZES))
    assert sorted(slept) == [0.5] * 4 + [1.0] * 4


def test_a_run_of_fakes_can_be_saved(tmp_path: Path) -> None:
    with f.whole.compile(faked(deployment(), SIZES), SIZES).launch() as running:
        running.save(tmp_path)
        running.load(tmp_path)


def test_ppo_runs_at_the_shapes_of_a_real_run() -> None:
    model, gpus = c.ModelConfig(path="/models/70b"), hf.ResourcePool([8, 8])
    where = hf.Deployment(
        actor=hf.place(w.Actor, c.ActorConfig(model, c.GenerationConfig(1024)), pool=gpus, mesh=hf.Mesh(dp=4, tp=4)),
        critic=hf.place(w.Critic, c.CriticConfig(model), pool=gpus),
        reference=hf.place(w.Reference, c.ReferenceConfig(model), pool=gpus),
        reward=hf.place(w.Reward, pool=gpus),  # only declared: a fake can be called
    )
    sizes: dict[type[hf.Dim], int] = {B: 512, P: 512, R: 1024}
    assert ppo.check(where, sizes).codes == ("HF515",)
    with ppo.compile(faked(where, sizes), sizes).launch() as running:
        actor, _, outcome = running.step(fake_batch(Prompts, sizes))
    assert actor.loss.value > 0
    assert 1 <= outcome.length.value <= 1024


@pytest.mark.nightly
def test_fakes_run_on_ray(ray_cluster: Any) -> None:
    where = faked(deployment(hf.Mesh(dp=2)), SIZES, seconds={"engine.answer": 0.01})
    plan, outputs = f.whole.compile(where, SIZES), []
    for backend in ("local", "ray"):
        with plan.launch(backend) as running:
            outputs.append(running.step(fake_batch(f.Prompts, SIZES)))
    assert all(map(same, outputs[0][:4], outputs[1][:4]))
