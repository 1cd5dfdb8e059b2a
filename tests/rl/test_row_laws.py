"""What functions promise of their rows: on parts that respect it, joined, they are what they are on the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.graph.program import Constant, FunctionCall
from hfdsl.graph.signatures import RecordType, Signature, StaticType
from hfdsl.protocols.call import Call, in_call
from hfdsl.rl import functions
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Advantages, B, P, PairOutcome, Pairs, PolicyVersions, Prompts, R, Rollout, Scores
from hfdsl.rl.dataflows.dapo import dapo_round
from hfdsl.testing import check_rows, fake_batch
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec
from tests.rl.dataflows.programs import PROGRAMS


@hf.dataflow
def corrected(prompts: Prompts, actor: w.Actor, sampler: w.Sampler) -> Rollout:
    """A rollout with the log-probs of the policy that learns, as where the sampler computes in another dtype."""
    rollout = sampler.generate(prompts)
    return functions.with_log_probs(rollout, actor.log_probs(rollout))


@hf.dataflow
def versioned(prompts: Prompts, sampler: w.Sampler) -> PolicyVersions:
    """Which versions of the policy sampled the rows, and learn from them."""
    return functions.versions(hf.queue(sampler.generate(prompts), lag=1, late="wait"))


@hf.dataflow
def against_the_others(prompts: Prompts, sampler: w.Sampler, reward: w.Reward) -> Advantages:
    """Advantages by each response's peers, as NeMo-RL's GRPO has them."""
    repeated = hf.repeat(prompts, 4)
    rollout = sampler.generate(repeated)
    return functions.normalized_leave_one_out_advantages(rollout, reward.score(repeated, rollout), group=4)


@hf.dataflow
def above_the_mean(prompts: Prompts, sampler: w.Sampler, reward: w.Reward) -> Scores:
    """Scores less their group's mean, as REINFORCE++ has them."""
    repeated = hf.repeat(prompts, 4)
    return functions.centered_scores(reward.score(repeated, sampler.generate(repeated)), group=4)


@hf.dataflow
def in_order(pairs: Pairs, reward: w.RewardLearner) -> PairOutcome:
    """Pairs by the scores of a reward model."""
    return functions.pair_outcome(pairs, reward.score_pairs(pairs))


FLOWS = (in_order, corrected, versioned, against_the_others, above_the_mean)


def calls() -> Iterator[tuple[Signature, dict[str, Any]]]:
    """Every function that a dataflow calls, with the constants that it is given."""
    for flow in (*(program.flow for program in PROGRAMS.values()), dapo_round.given(group=4), *FLOWS):
        for node in flow.trace().nodes:
            if isinstance(node.op, FunctionCall):
                constants = {
                    name: argument.value for name, argument in node.arguments if isinstance(argument, Constant)
                }
                yield node.op.signature, constants


def metrics_of(signature: Signature) -> list[str]:
    """The metrics that a function returns."""
    if not isinstance(signature.returns, RecordType):
        return []
    fields = schema(signature.returns.record).fields.items()
    return [name for name, spec in fields if isinstance(spec, MetricSpec)]


CALLS = {signature.name: (signature, constants) for signature, constants in calls()}


def test_all_functions_are_here() -> None:
    written = {name for name, value in vars(functions).items() if hasattr(value, "__wrapped__")}
    assert set(CALLS) == written


@pytest.mark.parametrize("name", CALLS)
def test_a_function_depends_on_the_rows_that_it_declares_and_needs_them(name: str) -> None:
    signature, constants = CALLS[name]
    given = {port.name: 0.5 for port in signature.ports if port.required and isinstance(port.type, StaticType)}
    multiple = constants.get("group", 2 if name == "pair_outcome" else 1)
    with in_call(Call(seed=0, step=3, node=0, rank=0, version=3, rows_version=1)):
        check_rows(getattr(functions, name), given={**given, **constants}, multiple=multiple, max_examples=40)


METRICS_OF_ROWS = [name for name, (signature, _) in CALLS.items() if metrics_of(signature)]


@pytest.mark.parametrize("name", METRICS_OF_ROWS)
def test_a_metric_of_no_rows_is_a_number(name: str) -> None:
    """As where a filter keeps none: HF907 would end the run."""
    signature, constants = CALLS[name]
    records = {port.name: port.type.record for port in signature.ports if isinstance(port.type, RecordType)}
    rows = {port: fake_batch(record, {B: 4, P: 3, R: 3})[:0] for port, record in records.items()}
    result = getattr(functions, name)(**rows, **constants)
    values = [getattr(result, metric).value for metric in metrics_of(signature)]
    assert values == [0.0] * len(values)


def test_options_of_losses_can_be_read_from_a_table() -> None:
    from typing import get_type_hints

    from hfdsl.rl import losses

    for name in ("Clip", "SequenceClip", "Reinforce", "ClippedValue", "DPO"):
        assert get_type_hints(getattr(losses, name))
    assert isinstance(PROGRAMS["ppo"].plain, hf.Dataflow)
