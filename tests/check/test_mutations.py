"""A valid program with a mistake put in: the check never raises, and reports exactly that mistake."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.check.report import Report
from hfdsl.testing.strategies.graphs import load

PROGRAM = """
import hfdsl as hf
from hfdsl import Add, Dispatch, register
from hfdsl.testing.sample_roles import B, P, R
from hfdsl.testing.sample_roles import SampleAdvantages as Advantages
from hfdsl.testing.sample_roles import SampleMetrics as Metrics
from hfdsl.testing.sample_roles import SamplePrompts as Prompts

class Rollout(hf.Batch):
    ids: hf.i64[B, Add[P, R]]
    mask: hf.bool_[B, R]
    log_probs: hf.f32[B, R]
class RefLogProbs(hf.Batch):
    log_probs: hf.f32[B, R]
class Scores(hf.Batch):
    reward: hf.f32[B]

class Actor(hf.Worker):
    def __init__(self, lr: float, micro: int) -> None: ...
    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generate(self, prompts: Prompts, temperature: float = 1.0) -> Rollout: ...
    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % micro == 0")
    def update(self, rollout: Rollout, ref: RefLogProbs, advantages: Advantages) -> Metrics: ...
class Reference(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: Rollout) -> RefLogProbs: ...
class Reward(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores: ...

@hf.function(rows=hf.Grouped(4))
def compare(scores: Scores, mask: hf.bool_[B, R]) -> Advantages: ...

@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> list[Metrics]:
    rollout = actor.generate(hf.repeat(prompts, 4), temperature=0.7)
    scores = reward.score(rollout=rollout)
    ref = reference.log_probs(rollout)
    advantages = compare(scores, rollout.mask)
    metrics = [actor.update(rollout, ref=ref, advantages=advantages) for _ in range(2)]
    return metrics

train, score = hf.ResourcePool([8]), hf.ResourcePool([2])
deployment = hf.Deployment(
    actor=hf.place(Actor, lr=1e-6, micro=8, pool=train, mesh=hf.Mesh(pp=2, dp=2, tp=2, gen_pp=1)),
    reference=hf.place(Reference, pool=train, mesh=hf.Mesh(dp=8)),
    reward=hf.place(Reward, pool=score),
)
dims = {B: 64, P: 128, R: 128}
"""


@dataclass(frozen=True)
class Mutation:
    """``old`` becomes ``new``, and the check finds ``codes``. ``alone``: it would hide or change what others are."""

    old: str
    new: str
    codes: tuple[str, ...]
    alone: bool = False


def swap(old: str, new: str, *codes: str, alone: bool = False) -> Mutation:
    return Mutation(old, new, codes, alone)


MUTATIONS = (
    # names
    swap("rollout.mask", "rollout.maks", "HF201"),
    swap("reward.score(rollout=", "reward.score(rolout=", "HF202"),
    swap("reward.score(rollout=", "reward.socre(rollout=", "HF202", alone=True),
    swap("reference.log_probs(rollout)", "reference.logprobs(rollout)", "HF202"),
    swap("rollout, ref=ref, advantages", "rollout, rollout=rollout, ref=ref, advantages", "HF202"),
    swap("temperature=0.7", "temp=0.7", "HF202"),
    # ports
    swap("compare(scores, rollout.mask)", "compare(scores)", "HF203"),
    swap("ref=ref, ", "", "HF203"),
    swap("reward.score(rollout=rollout)", "reward.score()", "HF203", alone=True),
    swap("log_probs(rollout)\n    adv", "log_probs(rollout, rollout)\n    adv", "HF202"),
    # kinds
    swap("compare(scores, rollout.mask)", "compare(rollout.mask, scores)", "HF206", "HF206"),
    swap("ref=ref, advantages=advantages", "ref=advantages, advantages=ref", "HF204", alone=True),
    swap("reference.log_probs(rollout)", "reference.log_probs(prompts)", "HF204"),
    swap("reference.log_probs(rollout)", "reference.log_probs(3)", "HF206"),
    swap("reference.log_probs(rollout)", "reference.log_probs(None)", "HF206"),
    swap("reference.log_probs(rollout)", "reference.log_probs(reward)", "HF206"),
    swap("reference.log_probs(rollout)", "reference.log_probs([rollout])", "HF206"),
    swap("temperature=0.7", "temperature='hot'", "HF206"),
    swap("hf.repeat(prompts, 4)", "hf.repeat(prompts.ids, 4)", "HF206", alone=True),
    swap("rollout.mask)", "rollout.log_probs)", "HF220"),
    swap("mask: hf.bool_[B, R]\n", "mask: hf.bool_[B, P]\n", "HF210", alone=True),
    swap("rollout.mask)", "scores.reward)", "HF220"),
    swap("mask: hf.bool_[B, R])", "mask: hf.bool_[B])", "HF210", alone=True),
    swap("reward: hf.f32[B]", "reward: hf.f32[R]", alone=True),  # other rows: any row dim will do
    # rows
    swap(
        "scores = reward.score(rollout=rollout)", "scores = reward.score(actor.generate(prompts))", "HF212", alone=True
    ),
    swap("hf.repeat(prompts, 4)", "hf.repeat(prompts, 0)", "HF304", alone=True),
    swap("hf.repeat(prompts, 4)", "hf.repeat(prompts, 1.5)", "HF304", alone=True),
    swap("B: 64", "B: 63", "HF310", alone=True),
    swap("B: 64", "B: 0", "HF302", alone=True),
    swap("B: 64, ", "", "HF319", alone=True),
    swap("Grouped(4)", "Grouped(7)", "HF313", alone=True),
    swap("micro=8", "micro=7", "HF322", alone=True),
    swap("B % micro == 0", "B % mirco == 0", "HF323"),
    swap("B % micro == 0", "R >= 1000", "HF322"),
    swap("B % micro == 0", "len(B) == 0", "HF114"),
    # Python that a trace cannot do
    swap("    return metrics", "    if scores.reward:\n        pass\n    return metrics", "HF207"),
    swap("    return metrics", "    while scores.reward:\n        break\n    return metrics", "HF207"),
    swap("    return metrics", "    assert float(scores.reward) < 3\n    return metrics", "HF207"),
    swap("    return metrics", "    return [m.loss * 2 for m in metrics]", "HF208"),
    swap("    return metrics", "    scores.reward = 3\n    return metrics", "HF206"),
    swap("    return metrics", "    return reward", "HF603"),
    swap("    return metrics", "    return metrics[7]", "HF610", alone=True),
    swap("    return metrics", "    reward.score(rollout)\n    return metrics", "HF602", alone=True),
    # declarations
    swap("def score(self, rollout: Rollout)", "def score(self, rollout)", "HF104", alone=True),
    swap("def score(self, rollout: Rollout)", "def score(self, *rollout: Rollout)", "HF105", alone=True),
    swap("def score(self, rollout: Rollout)", "def score(self, rollout: 'Rolloot')", "HF109", alone=True),
    swap("(prompts: Prompts, actor", "(prompts: 'Promts', actor", "HF109", alone=True),
    swap("reward: Reward) -> list", "reward: Reward, times: int) -> list", "HF119"),
    # protocols
    swap("Dispatch.DP_PROTO", "Dispatch.ONE_TO_ALL", "HF401", alone=True),
    swap("Dispatch.DP_PROTO", "Dispatch.DP_PROTO, rows=hf.Whole", "HF421", alone=True),
    swap("Dispatch.DP_PROTO", "Dispatch.ALL_TO_ALL", "HF401", "HF401", alone=True),
    # places
    swap("    reward=hf.place(Reward, pool=score),\n", "", "HF507"),
    swap("    reward=hf.place", "    rewards=hf.place", "HF507"),
    swap("    reward=hf.place", "    critic=hf.place(Reward, pool=score),\n    reward=hf.place", "HF508"),
    swap("hf.place(Reward,", "hf.place(Reference,", "HF515"),
    swap("lr=1e-6, ", "", "HF516", alone=True),
    swap("micro=8", "micor=8", "HF516", alone=True),
    swap("hf.place(Reward, pool", "hf.place(Reward, 'model', pool", "HF516"),
    swap("hf.Mesh(dp=8)", "hf.Mesh(dp=4)", "HF501"),
    swap("hf.Mesh(dp=8)", "hf.Mesh(dp=8, tp=2)", "HF501"),
)


def check(source: str) -> Report:
    names = load(source)
    report: Report = names["program"].check(names["deployment"], names["dims"])
    assert str(report)
    return report


def test_the_program_itself_is_clean() -> None:
    assert check(PROGRAM).findings == ()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.old.strip()[:20]}>{m.new.strip()[:20]}")
def test_a_mistake_is_reported_as_itself(mutation: Mutation) -> None:
    assert PROGRAM.count(mutation.old) == 1
    report = check(PROGRAM.replace(mutation.old, mutation.new))
    assert Counter(report.codes) == Counter(mutation.codes), str(report)


def place(mutation: Mutation) -> set[int]:
    """The lines of the program that a mutation changes."""
    start = PROGRAM[: PROGRAM.index(mutation.old)].count("\n")
    return set(range(start, start + mutation.old.count("\n") + 1))


@given(st.lists(st.sampled_from([m for m in MUTATIONS if not m.alone]), min_size=2, max_size=5, unique=True))
def test_several_mistakes_are_all_reported(mutations: list[Mutation]) -> None:
    places: set[int] = set()
    source, expected = PROGRAM, Counter[str]()
    for mutation in mutations:
        if not places & place(mutation):
            places |= place(mutation)
            source = source.replace(mutation.old, mutation.new)
            expected += Counter(mutation.codes)
    report = check(source)
    assert Counter(report.codes) == expected, f"{source}\n{report}"


@given(st.lists(st.sampled_from(MUTATIONS), min_size=2, max_size=6, unique=True))
def test_no_mixture_of_mistakes_makes_the_check_raise(mutations: list[Mutation]) -> None:
    source = PROGRAM
    for mutation in mutations:
        source = source.replace(mutation.old, mutation.new)
    report = check(source)
    assert len(report.json().splitlines()) == len(report.findings)


@given(st.integers(-3, 300), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_any_sizes_and_meshes_give_a_report(b: int, times: int, dp: int, tp: int) -> None:
    source = PROGRAM.replace("B: 64", f"B: {b}").replace("prompts, 4)", f"prompts, {times})")
    source = source.replace("pp=2, dp=2, tp=2", f"pp=2, dp={dp}, tp={tp}")
    codes = set(check(source).codes)
    assert ("HF302" in codes) is (b < 1)
    assert ("HF501" in codes) is (dp * tp != 4)
