"""Sampling: do roles generate responses that differ, of the policy that learns, and of the length that is declared?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hfdsl.check.bodies.generation import GREEDY_OPTIONS, greedy_option
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.context import Context
from hfdsl.check.dependences import Dependences, sampling_calls, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.graph.ancestry import descendants
from hfdsl.graph.program import Constant, FunctionCall, Graph, Node, Repeat, RoleCall
from hfdsl.graph.type_sizes import dims_of
from hfdsl.protocols import role_facts
from hfdsl.protocols.role_facts import RoleFact
from hfdsl.protocols.state import effects_of
from hfdsl.types.dims import Dim

# -- responses that differ


@dataclass(frozen=True, slots=True)
class EqualResponses:
    """A call whose responses to a prompt are all the same, why, and the function that compares them."""

    generate: Node
    role: str
    why: str
    compares: Node

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"'{self.generate.label}' gives every copy of a prompt the same response ({self.why}), so "
            f"'{self.compares.label}' compares equal scores and every advantage is 0"
        )


def responses_of_a_prompt_differ(context: Context) -> Iterator[Finding]:
    """HF725: responses to a prompt that an update compares are not all the same."""
    for equal in equal_responses(context.program):
        place = context.program.placement(equal.generate)
        is_configured = equal.why not in (GREEDY, *GREEDY_OPTIONS.values())
        placed = [Label(place.span, "configured here")] if place is not None and is_configured else []
        yield Finding(
            "HF725",
            equal.message,
            Label(equal.generate.span, equal.why),
            (Label(equal.compares.span, "compares the responses to a prompt"), *placed),
        )


GREEDY = "greedy = True"
"""The reason of a call that asks for the likeliest tokens."""


def equal_responses(program: Program) -> Iterator[EqualResponses]:
    """The calls on repeated prompts that give equal ones, where a function before an update compares nothing else."""
    graph, dependences = program.graph, Dependences(program)
    why = {
        call: reason
        for call in dependences.samplers
        if (reason := _greedy_or(program, graph.nodes[call], role_facts.repeats_responses))
    }
    on_copies = _repeated(graph) & why.keys()
    reported = set[int]()
    for node, signature in graph.bodies if on_copies else ():
        compared = dependences.of_node(node.id)
        if not isinstance(node.op, FunctionCall) or signature.group_size < 2 or not compared or compared - on_copies:
            continue
        if any(updates_after(program, node)):
            for call in sorted(compared - reported):
                reported.add(call)
                yield EqualResponses(graph.nodes[call], graph.nodes[call].role, why[call], node)


def _greedy_or(program: Program, call: Node, fact: RoleFact[str | None]) -> str | None:
    """``GREEDY``, an option that a method writes, or what the role of a call states."""
    if dict(call.arguments).get("greedy") == Constant(True):
        return GREEDY
    return _written_option(program, call) or fact.of(program.placement(call))


def _written_option(program: Program, call: Node) -> str | None:
    """The option by which the user's own method that a call runs chooses the likeliest tokens."""
    signature = signature_of(call)
    if signature is None or signature.is_ready_made or not isinstance(call.op, RoleCall):
        return None
    method = methods_of(program.role_class(call.role)).get(call.method)
    return None if method is None else greedy_option(method.definition)


def chooses_tokens(program: Program, call: Node) -> bool:
    """Whether a call may sample the likeliest tokens alone, or from a part of the distribution."""
    return program.placement(call) is None or _greedy_or(program, call, role_facts.truncates) is not None


def _repeated(graph: Graph) -> set[int]:
    """The nodes that depend on repeated rows."""
    return descendants(graph, [node.id for node in graph.nodes if isinstance(node.op, Repeat)])


# -- the distribution that they are of


@dataclass(frozen=True, slots=True)
class TruncatedResponses:
    """A call that samples from a part of the distribution, how, and an update by the log-probs of all of it."""

    generate: Node
    role: str
    how: str
    update: Node

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"'{self.generate.label}' samples from a part of the distribution ({self.how}), and '{self.update.label}' "
            "trains as if on samples from all of it"
        )


WHOLE_DISTRIBUTION = (
    "a token inside of that part appears more often than its log-prob says, and one outside never: the gradients are "
    "those of another policy; truncate in evaluations only"
)
"""The effect of truncation on a policy gradient."""


def rollouts_are_of_the_whole_distribution(context: Context) -> Iterator[Finding]:
    """HF727: a policy that learns by a ratio or a policy gradient samples from its whole distribution."""
    for truncated in truncated_responses(context.program):
        place = context.program.placement(truncated.generate)
        labels = [Label(truncated.generate.span, "samples"), Label(truncated.update.span, "learns from that")]
        if place is not None and truncated.how not in (GREEDY, *GREEDY_OPTIONS.values()):
            labels.insert(0, Label(place.span, truncated.how))
        yield Finding("HF727", truncated.message, labels[0], tuple(labels[1:]), notes=(WHOLE_DISTRIBUTION,))


def truncated_responses(program: Program) -> Iterator[TruncatedResponses]:
    """The calls with the weights of a policy that truncate what it learns from, each once.

    Groups of equal responses teach nothing at all, which HF725 reports.
    """
    links, reported = role_links(program), {equal.generate.id for equal in equal_responses(program)}
    for update in filter(_divides, program.graph.calls):
        for call in sampling_calls(program, update):
            how = _greedy_or(program, call, role_facts.truncates)
            if how is None or call.id in reported or update.role not in linked_roles(links, call.role):
                continue
            reported.add(call.id)
            yield TruncatedResponses(call, call.role, how, update)


def _divides(call: Node) -> bool:
    """Whether a call is an update by log-probs of what was sampled."""
    return isinstance(call.op, RoleCall) and any(e.ratio is not None for e in effects_of(call.op.signature.body))


# -- their length


@dataclass(frozen=True, slots=True)
class OtherSize:
    """A call whose result has another size in a dim than the program, as its role is configured."""

    call: Node
    role: str
    dim: str
    configured: int
    size: int

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"'{self.call.label}' returns columns of {self.dim} = {self.configured} as '{self.role}' is configured, "
            f"but the dataflow has {self.dim} = {self.size}"
        )


def results_have_their_size(context: Context) -> Iterator[Finding]:
    """HF711: the sizes that a role's configuration fixes are those of the dataflow."""
    for mismatch in other_sizes(context.program, context.sizes):
        place = context.program.placement(mismatch.call)
        if place is not None:
            yield Finding(
                "HF711",
                mismatch.message,
                Label(place.span, f"configured for {mismatch.dim} = {mismatch.configured}"),
                (Label(mismatch.call.span, "called here"),),
                notes=(
                    f"set {mismatch.dim} to {mismatch.configured}, or configure '{mismatch.role}' for {mismatch.size}",
                ),
            )


def other_sizes(program: Program, sizes: Mapping[type[Dim], int]) -> Iterator[OtherSize]:
    """The calls whose results have other sizes than the dims are given, each method once."""
    reported = set[tuple[str, str]]()
    for node, signature in program.graph.bodies:
        place, method = program.placement(node), (node.role, signature.name)
        if place is None or method in reported:
            continue  # of a method that is called in a loop, the first call is enough
        reported.add(method)
        configured = role_facts.result_sizes.of(place).get(signature.name, {})
        for dim in dims_of(signature) if configured else ():
            size = configured.get(dim.__name__)
            if size is not None and sizes.get(dim, size) != size:
                yield OtherSize(node, node.role, dim.__name__, size, sizes[dim])
