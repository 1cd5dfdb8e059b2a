"""Reward modeling: its updates against the loss of whole pairs, and the model that a run leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

import hfdsl as hf
from hfdsl.errors import CheckpointError
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Pairs, PreferenceMetrics, R
from hfdsl.rl.dataflows.reward_modeling import reward_modeling
from hfdsl.rl.losses import BradleyTerry
from hfdsl.rl.training.config import load
from hfdsl.rl.training.loop import train
from hfdsl.rl.training.run_folder.export import export
from tests.rl.workers import tiny
from tests.rl.workers.programs import numbers

ROWS = 8
SIZES: dict[type[hf.Dim], int] = {B: ROWS, P: tiny.PROMPT, R: tiny.RESPONSE}


def with_equal_responses(pairs: Pairs) -> Pairs:
    """The same pairs; neither response of the second is better."""
    preference = pairs.preference.tensor.clone()
    preference[2:4] = 0
    columns = {name: getattr(pairs, name) for name in ("ids", "mask", "response_mask")}
    return Pairs(**columns, preference=preference)


def expected(role: w.RewardLearner, pairs: Pairs, center: float) -> tuple[float, float, float, float]:
    """The loss, the margin, the share of right pairs and the gradient's norm, row by row without padding."""
    role.model.zero_grad()
    scores = []
    for ids, mask in zip(pairs.ids.tensor, pairs.mask.tensor, strict=True):
        tokens = ids[mask][None]
        scores.append(role.model(tokens, torch.ones_like(tokens, dtype=torch.bool))[0, -1])
    first, second = torch.stack(scores).view(-1, 2).unbind(1)
    decided = pairs.preference.tensor.view(-1, 2)[:, 0] != 0
    margins = (first - second)[decided]
    loss = (-logsigmoid(margins) + center * (first + second)[decided].square()).mean()
    loss.backward()
    gradients = [p.grad.norm() for p in role.model.parameters() if p.grad is not None]
    role.model.zero_grad()
    correct = (margins > 0).float().mean()
    return loss.item(), margins.mean().item(), correct.item(), torch.stack(gradients).norm().item()


@pytest.mark.parametrize("batching", [tiny.FIXED, w.BatchingConfig(tokens=25, packing=True)], ids=["fixed", "packed"])
@pytest.mark.parametrize("center", [0.0, 0.1])
def test_updates_are_those_of_whole_pairs(batching: w.BatchingConfig, center: float) -> None:
    torch.set_num_threads(1)
    role = w.RewardLearner(w.CriticConfig(tiny.MODEL, tiny.TRAINING, batching))
    for step in range(3):  # the head of the first is zero
        pairs = with_equal_responses(tiny.pairs(ROWS, step))
        loss, margin, correct, norm = expected(role, pairs, center)
        metrics: PreferenceMetrics = role.prefer(pairs, loss=BradleyTerry(center))
        values = [getattr(metrics, name).value for name in ("loss", "margin", "correct", "grad_norm")]
        assert values == pytest.approx([loss, margin, correct, norm], rel=1e-4, abs=1e-6)


def test_a_model_learns_wherever_it_is_placed() -> None:
    torch.set_num_threads(1)

    def learned(mesh: hf.Mesh, steps: int) -> list[dict[str, float]]:
        pool = hf.ResourcePool([mesh.world_size], use_gpu=False)
        config = w.CriticConfig(tiny.MODEL, tiny.TRAINING, tiny.FIXED)
        places = hf.Deployment(reward=hf.place(w.RewardLearner, config, pool=pool, mesh=mesh))
        assert reward_modeling.check(places, SIZES).codes == ()
        with reward_modeling.compile(places, SIZES).launch("local") as running:
            return [numbers(running.step(tiny.pairs(ROWS, step))) for step in range(steps)]

    on_one_rank = learned(hf.Mesh(), 6)
    for mesh in (hf.Mesh(dp=2), hf.Mesh(tp=2)):
        for step, actual in zip(on_one_rank[:3], learned(mesh, 3), strict=True):
            assert actual == pytest.approx(step, rel=1e-2, abs=1e-3)
    assert on_one_rank[0]["correct"] == 0  # all scores are 0
    assert on_one_rank[-1]["correct"] == 1


RUN = """\
algorithm = "hfdsl.rl.dataflows.reward_modeling:reward_modeling"
output = "{folder}/run"
steps = 3
dims = {{ B = 8, P = 4, R = 4 }}
checkpoints = {{ every = 3 }}

[deployment]
pools = {{ all = {{ processes = [{ranks}], gpu = false }} }}
default = {{ pool = "all", mesh = {{ {axis} = {ranks} }} }}

[data]
source = {{ kind = "JsonLines", path = "{folder}/pairs.jsonl" }}
tokenizer = {{ kind = "Characters", alphabet = "abcdefgh" }}
prompt = {{ text = "{{prompt}}", answer = "{{chosen}}", rejected = "{{rejected}}" }}

[evaluation]
every = 3
algorithm = "hfdsl.rl.training.evaluation:evaluate_pairs"
source = {{ kind = "JsonLines", path = "{folder}/pairs.jsonl" }}
held_out = false

[reward]
training = {{ optimizer = {{ learning_rate = 1e-2 }} }}
{lora}
[reward.model.config]
model_type = "llama"
vocab_size = 11
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 16
eos_token_id = 1
pad_token_id = 0
"""


@pytest.mark.parametrize(("axis", "ranks", "lora"), [("dp", 1, ""), ("tp", 2, ""), ("dp", 1, "lora = { rank = 2 }")])
def test_a_run_leaves_a_model_that_a_reward_model_loads(tmp_path: Path, axis: str, ranks: int, lora: str) -> None:
    if lora:
        pytest.importorskip("peft")
    rows = [f'{{"prompt": "{a}{b}", "chosen": "{b}{a}", "rejected": "{a}"}}' for a in "abc" for b in "defg"]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(folder=tmp_path, axis=axis, ranks=ranks, lora=lora))
    loaded = load(str(file))
    train(loaded)
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "held_out/correct" in record] == [0, 3]
    assert records[0]["held_out/correct"] == 0  # all scores are 0
    export(tmp_path / "run", None, tmp_path / "model")

    batch = tiny.pairs(ROWS)
    pairs = Pairs(
        ids=batch.ids.tensor % 9 + 2,
        mask=batch.mask.tensor,
        response_mask=batch.response_mask.tensor,
        preference=batch.preference.tensor,
    )
    saved = w.RewardModel(w.RewardConfig(w.ModelConfig(path=str(tmp_path / "model"))))
    prompts = tiny.prompts(ROWS)
    scores = saved.score(prompts, pairs).score.tensor
    assert scores.abs().max() > 0

    from transformers import AutoModelForSequenceClassification

    classifier: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    for row, (ids, mask) in enumerate(zip(pairs.ids.tensor, pairs.mask.tensor, strict=True)):
        with torch.no_grad():
            number = classifier(ids[mask][None]).logits.item()
        assert number == pytest.approx(scores[row].item(), abs=1e-5)
    with pytest.raises(CheckpointError, match=r"HF906: 'reward' in .* is not a policy" if lora else "has no adapter"):
        export(tmp_path / "run", "reward", tmp_path / "alone", adapter=True)


def test_a_learner_scores_as_the_model_that_it_leaves(tmp_path: Path) -> None:
    """In a dataflow of one's own, which uses the scores while it learns."""
    torch.set_num_threads(1)
    role = w.RewardLearner(w.CriticConfig(replace(tiny.MODEL, dtype="float32"), tiny.TRAINING, tiny.FIXED))
    pairs = tiny.pairs(ROWS)
    assert torch.equal(role.score(tiny.prompts(ROWS), pairs).score.tensor, torch.zeros(ROWS))
    for step in range(6):
        role.prefer(tiny.pairs(ROWS, step), loss=BradleyTerry())
    better, worse = role.score(tiny.prompts(ROWS), pairs).score.tensor.view(-1, 2).unbind(1)
    assert (better > worse).all()
    assert torch.equal(role.score_pairs(pairs).score.tensor.view(-1, 2), torch.stack([better, worse], 1))
    again = w.RewardLearner(role.config)
    again.load_state(role.state())
    assert torch.equal(again.score(tiny.prompts(ROWS), pairs).score.tensor.view(-1, 2)[:, 0], better)
