"""Temperatures: do policies whose log-probs are compared have the same temperature?

A worked example, roles that state their temperature by ``policy_temperature``::

    hf.sync(actor, sampler)
    rollout = sampler.generate(prompts)          # sampled at the temperature of 'sampler'
    ref = reference.log_probs(rollout)           # at that of 'reference'
    rewards = kl_penalized_rewards(rollout, ref, scores)
    actor.update(...)                            # its ratio and its KL are of the temperature of 'actor'

The rule compares the policy that learns with each role that sampled the tokens of its updates from its weights, and
with each whose log-probs enter a ready-made update or function before it. It does not know how a user's own function
uses log-probs, and a teacher, or another policy that learns, may have a temperature of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls, training_calls, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Ref, RoleCall
from hfdsl.graph.samples import is_float_column, is_token_column
from hfdsl.protocols import role_facts

TEACHERS = ("teacher_advantages", "distance")
"""The ready-made functions that allow a teacher a temperature of its own."""


@dataclass(frozen=True, slots=True)
class DifferentTemperatures:
    """A policy that learns, and a role with another temperature whose log-probs it is compared with."""

    learner: str
    role: str
    learned: float
    compared: float

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"'{self.role}' has temperature = {self.compared:g}, but '{self.learner}' has {self.learned:g}: their "
            "log-probs are of different distributions"
        )


def temperatures_agree(context: Context) -> Iterator[Finding]:
    """HF712: roles whose log-probs are compared divide logits by one temperature."""
    places = context.program.placements
    for pair in different_temperatures(context.program):
        yield Finding(
            "HF712",
            pair.message,
            Label(places[pair.role].span, f"has temperature = {pair.compared:g}"),
            (Label(places[pair.learner].span, f"has temperature = {pair.learned:g}"),),
            notes=(f"give '{pair.role}' temperature = {pair.learned:g}",),
        )


def different_temperatures(program: Program) -> Iterator[DifferentTemperatures]:
    """The pairs of a policy that learns and a role at another temperature that it is compared with, each once."""
    places = program.placements
    stated = {role: role_facts.policy_temperature.of(place) for role, place in places.items()}
    temperatures = {role: temperature for role, temperature in stated.items() if temperature is not None}
    if len(set(temperatures.values())) < 2 or program.graph.misuses:
        return
    for learner, role in dict.fromkeys((*_sampled(program), *compared_roles(program))):
        if learner in temperatures and role in temperatures and temperatures[learner] != temperatures[role]:
            yield DifferentTemperatures(learner, role, temperatures[learner], temperatures[role])


def _sampled(program: Program) -> Iterator[tuple[str, str]]:
    """The policies that learn, and the roles with their weights that sampled what they learn from."""
    links = role_links(program)
    for update in training_calls(program):
        for call in sampling_calls(program, update):
            if isinstance(call.op, RoleCall) and update.role in linked_roles(links, call.op.role):
                yield update.role, call.op.role


def compared_roles(program: Program) -> Iterator[tuple[str, str]]:
    """The policies that learn, and the roles whose log-probs a ready-made update or function before it compares."""
    learning = {node.role for node in training_calls(program)}
    for node, signature in program.graph.bodies:
        if not signature.is_ready_made or signature.name in TEACHERS:
            continue
        scored = dict.fromkeys(role for role in _scorers(program, node) if role not in learning)
        for update in updates_after(program, node) if scored else ():
            yield from ((update.role, role) for role in scored)


def _scorers(program: Program, node: Node) -> Iterator[str]:
    """The roles that computed floats of given tokens, such as their log-probs, which a node reads."""
    for column in program.origins.columns(node.id):
        stored = stored_column(program.graph, column.ref)
        call = program.graph.nodes[stored.node] if isinstance(stored, Ref) else node
        is_number = is_float_column(column.spec) and column.inner
        if call is not node and isinstance(call.op, RoleCall) and is_number and _reads_tokens(program, call):
            yield call.op.role


def _reads_tokens(program: Program, call: Node) -> bool:
    return any(is_token_column(column.spec) and column.inner for column in program.origins.columns(call.id))
