"""Engines: does a loss correct for samples of an engine whose log-probs are not the trainer's?

A worked example, where 'engine' samples with vLLM from the weights of 'actor'::

    hf.sync(actor, engine)
    rollout = engine.generate(prompts)
    now = with_log_probs(rollout, actor.log_probs(rollout))
    actor.update(now, loss=Clip(correction=None))          # policy / trainer's: nothing accounts for the engine
    actor.update(rollout, loss=Clip(correction=None))      # policy / engine's: the ratio itself does
    actor.update(rollout, loss=Reinforce())                # no ratio, and no trainer's log-probs to correct with

A role states by ``samples_with`` that its engine is another one, and a loss states by ``corrects_engine`` and
``uses_ratio`` what it does. The rule knows the call that generated an update's tokens by their origin. Only samples of
the learner, or of a role that gets its weights, count as the learner's own: the policy learns from data of another
policy as it is. A user's function that reads ``engine_log_probs`` may correct by itself; the rule then reports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Constant, FunctionCall, Node, Ref, RoleCall
from hfdsl.graph.signatures import RecordType
from hfdsl.protocols import role_facts
from hfdsl.protocols.state import effects_of
from hfdsl.types.batches import schema

ENGINE_COLUMN = "engine_log_probs"
"""The column of the log-probs that tokens were sampled with."""

WITHOUT_CORRECTION = "leave out correction=None: the default is truncated importance sampling of tokens"
WITHOUT_LOG_PROBS = (
    "take the log-probs from '{learner}': call its log_probs on the rollout and train on with_log_probs(rollout, "
    "log_probs) of hfdsl.rl.functions"
)


def losses_correct_engines(context: Context) -> Iterator[Finding]:
    """HF943: the loss of an update accounts for an engine that is not the trainer's, or its ratio does."""
    program = context.program
    places = program.placements
    engines = {role: role_facts.samples_with.of(place) for role, place in places.items()}
    if not any(engines.values()) or program.graph.misuses or _user_may_correct(context):
        return
    links = role_links(program)
    for update in program.graph.calls:
        loss = _loss(update)
        if loss is None or not isinstance(update.op, RoleCall):
            continue
        learner = update.op.role
        for sampling in sampling_calls(program, update):
            if not isinstance(sampling.op, RoleCall):
                continue
            engine = sampling.op.role
            name = engines.get(engine)
            if name is None or learner not in linked_roles(links, engine):
                continue
            is_direct = engine != learner and _divides_by(context, update, sampling)
            if is_direct and not getattr(loss, "uses_ratio", True):
                missing, help_ = "it has no ratio, and no log-probs of the trainer's to correct with", WITHOUT_LOG_PROBS
            elif not is_direct and not loss.corrects_engine:
                missing, help_ = "it has no correction", WITHOUT_CORRECTION
            else:
                continue
            yield Finding(
                "HF943",
                f"'{engine}' samples with {name}, whose log-probs are not the trainer's, and the loss of "
                f"'{update.label}' does not account for that: {missing}",
                Label(update.span, "trains as if its own engine had sampled"),
                (Label(sampling.span, f"{name} samples"),),
                notes=(help_.format(learner=learner),),
            )


def _loss(update: Node) -> Any:
    """The loss of an update, where one of its options is a loss that says whether it corrects."""
    if not isinstance(update.op, RoleCall) or not any(e.kind == "writes" for e in effects_of(update.op.signature.body)):
        return None
    values = (operand.value for _, operand in update.arguments if isinstance(operand, Constant))
    return next((value for value in values if isinstance(getattr(value, "corrects_engine", None), bool)), None)


def _divides_by(context: Context, update: Node, sampling: Node) -> bool:
    """Whether an update's log-probs are those that the sampling call itself returned."""
    columns = (c for c in context.program.origins.columns(update.id) if c.name == "log_probs")
    stored = [stored_column(context.program.graph, column.ref) for column in columns]
    return any(isinstance(source, Ref) and source.node == sampling.id for source in stored)


def _user_may_correct(context: Context) -> bool:
    """Whether a function that is not hfdsl's reads the engine's log-probs."""
    for node, signature in context.program.graph.bodies:
        if isinstance(node.op, FunctionCall):
            records = [port.type.record for port in signature.ports if isinstance(port.type, RecordType)]
            if not signature.is_ready_made and any(ENGINE_COLUMN in schema(r).fields for r in records):
                return True
    return False
