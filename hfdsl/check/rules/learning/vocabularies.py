"""Vocabularies: do all models that read the same tokens have embeddings for the same ones?

A worked example, where 'reward' is another model than 'actor', with another tokenizer::

    rollout = actor.generate(prompts)            # numbers of tokens of the vocabulary of 'actor'
    reward.score(prompts, rollout)               # the same numbers mean other words to 'reward'

Roles state the number of their tokens by ``vocabulary``. Models of one family pad the same vocabulary to different
sizes, as Qwen2.5 of 0.5B (151,936) and 7B (152,064) do, so the rule ignores a difference of a hundredth. A role that
decodes tokens to text, as a verifier or a judge does, states no vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.dependences import training_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.rules.weights.copied_models import has_other_shapes
from hfdsl.deploy.weight_syncs import weight_syncs
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Operand, RoleCall
from hfdsl.graph.samples import is_token_column
from hfdsl.protocols import role_facts

PADDING = 0.01
"""The share by which sizes of the same vocabulary may differ, as embeddings are padded."""


def readers_have_the_vocabulary(context: Context) -> Iterator[Finding]:
    """HF341: the models that read tokens have the vocabulary of the one that sampled them."""
    program = context.program
    places = program.placements
    sizes = {role: role_facts.vocabulary.of(place) for role, place in places.items()}
    syncs = weight_syncs(program.graph, program.deployment)
    copies = {sync.target.role for sync in syncs if has_other_shapes(sync)}  # HF732 names a parameter
    vocabularies = {role: size for role, size in sizes.items() if size is not None and role not in copies}
    first, reported = dict[int | Operand, Node](), set[tuple[str, str]]()
    trained = {node.role for node in training_calls(program)}
    if len(set(vocabularies.values())) < 2:
        return
    reads = sorted(_readers(program), key=lambda pair: not _is_sampled(program, pair[0]))
    for tokens, call in reads:
        if call.role not in vocabularies:
            continue
        first_call = first.setdefault(tokens, call)
        # Of two that read the tokens of an input, the one that learns gives the vocabulary.
        base, reader = (call, first_call) if first_call.id != tokens and call.role in trained else (first_call, call)
        pair = (base.role, reader.role)
        if pair in reported or not _differ(vocabularies[base.role], vocabularies[reader.role]):
            continue
        reported.add(pair)
        whose = f"whose token ids '{reader.label}' reads" if base.id == tokens else "which reads the same token ids"
        yield Finding(
            "HF341",
            f"'{reader.role}' has a vocabulary of {vocabularies[reader.role]:,} tokens, and '{base.role}', {whose}, of "
            f"{vocabularies[base.role]:,}",
            Label(places[reader.role].span, f"has {vocabularies[reader.role]:,} tokens"),
            (
                Label(places[base.role].span, f"has {vocabularies[base.role]:,} tokens"),
                Label(reader.span, "reads ids of the other vocabulary"),
            ),
            notes=("place models of one tokenizer, or a role that decodes the tokens and reads the text",),
        )


def _differ(first: int, second: int) -> bool:
    return abs(first - second) > PADDING * max(first, second)


def _is_sampled(program: Program, tokens: int | Operand) -> bool:
    return isinstance(tokens, int) and isinstance(program.graph.nodes[tokens].op, RoleCall)


def _readers(program: Program) -> Iterator[tuple[int | Operand, Node]]:
    """The calls of roles that sample or read tokens, each with the call that samples these, or the column they are."""
    for node in (call for call in program.graph.calls if isinstance(call.op, RoleCall)):
        yield from ((call, node) for call in program.origins.tokens[node.id].calls.values() if call == node.id)
        columns = program.origins.columns(node.id)
        for column in (column for column in columns if is_token_column(column.spec) and column.inner):
            samples = program.origins.samples(column).values()
            yield from ((call, node) for call in samples or [stored_column(program.graph, column.ref)])
