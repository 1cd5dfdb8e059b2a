"""Dependences: which samples a value depends on, and which updates depend on a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from hfdsl.check.bodies.optimizers import steps_for_certain
from hfdsl.check.bodies.role_code import code_of
from hfdsl.check.bodies.syntax import columns_read
from hfdsl.check.program import Program
from hfdsl.graph.ancestry import descendants
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Derived, FunctionCall, Node, Operand, Pack, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_token_column
from hfdsl.graph.signatures import VALUE, RecordType, Signature
from hfdsl.protocols.state import effects_of


def sampling_calls(program: Program, node: Node) -> list[Node]:
    """The calls that generated the tokens that a node reads."""
    origins, nodes = program.origins, program.graph.nodes
    tokens = (column for column in origins.columns(node.id) if is_token_column(column.spec))
    return [nodes[call] for call in sorted({call for column in tokens for call in origins.samples(column).values()})]


def updates_after(program: Program, node: Node) -> Iterator[Node]:
    """The calls that train a role and depend on what a node makes; the node itself, if it trains one."""
    later = (program.graph.nodes[number] for number in sorted(descendants(program.graph, [node.id])))
    return (update for update in later if trains(program, update))


def trains(program: Program, node: Node) -> bool:
    """Whether a node is a call that trains its role: by what its method declares, or by the steps that it takes."""
    if not isinstance(node.op, RoleCall):
        return False
    return declares_training(node) or _takes_steps(program.role_class(node.role), node.method)


def declares_training(node: Node) -> bool:
    """Whether a node is a call of a method that declares to train its role."""
    return isinstance(node.op, RoleCall) and any(e.kind == "writes" for e in effects_of(node.op.signature.body))


@lru_cache(maxsize=1024)
def _takes_steps(role: type, method: str) -> bool:
    """Whether a method takes steps of an optimizer of what its role keeps."""
    return next(steps_for_certain(code_of(role), method), None) is not None


def training_calls(program: Program) -> list[Node]:
    """The calls that train a role."""
    return [node for node in program.graph.calls if trains(program, node)]


def update_lines(program: Program) -> list[Node]:
    """The first update of each line of the dataflow: a loop over mini-batches and epochs repeats what it reads."""
    return list({node.span: node for node in reversed(training_calls(program))}.values())[::-1]


def shares_with_another_role(program: Program, node: Node, columns: Callable[[Program, Node], set[Operand]]) -> bool:
    """Whether an update of another role reads one of the ``columns`` of an update, as of two that play a game."""
    own = columns(program, node)
    return any(other.role != node.role and own & columns(program, other) for other in update_lines(program))


def body_columns(program: Program, node: Node) -> list[RowColumn]:
    """The columns that the body of a function reads; none of another node."""
    if not isinstance(node.op, FunctionCall):
        return []
    read, columns = _read(node.op.signature), program.origins.columns(node.id)
    return [column for column in columns if column.port not in read or column.name in read[column.port]]


@lru_cache(maxsize=256)
def _read(signature: Signature) -> Mapping[str, frozenset[str]]:
    """By port of a record the columns that a body reads, where that is known; a ready-made one reads what it takes."""
    records = {port.name for port in signature.ports if isinstance(port.type, RecordType)}
    read = {} if signature.is_ready_made else columns_read(signature.body)
    return {port: names for port, names in read.items() if port in records}


@dataclass
class Dependences:
    """The sampling calls that the values of a program depend on.

    A rollout depends on its own call; a score of it, and a rollout whose prompts were made from it, do too.
    """

    program: Program

    @cached_property
    def samplers(self) -> set[int]:
        """The calls of roles that sample tokens."""
        tokens, nodes = self.program.origins.tokens, self.program.graph.nodes
        return {n.id for n in nodes if isinstance(n.op, RoleCall) and n.id in tokens[n.id].calls.values()}

    @cached_property
    def _of_nodes(self) -> list[frozenset[int]]:
        depends = list[frozenset[int]]()
        for node in self.program.graph.nodes:
            own = {node.id} if node.id in self.samplers else frozenset[int]()
            depends.append(frozenset(own).union(*(self._of(ref, depends) for ref in node.refs)))
        return depends

    def _of(self, ref: Ref, depends: Sequence[frozenset[int]]) -> frozenset[int]:
        """The samplers that a value or a column of it depends on; rows that a filter keeps depend on its column."""
        node = self.program.graph.nodes[ref.node]
        if not isinstance(node.op, Derived) or (isinstance(node.op, Pack) and ref.column is None):
            return depends[node.id]
        beside = () if isinstance(node.op, Pack) else node.arguments[1:]
        sources = (node.source(ref.column or VALUE), *(operand for _, operand in beside))
        return frozenset[int]().union(*(self._of(source, depends) for source in sources if isinstance(source, Ref)))

    def of_node(self, node: int) -> frozenset[int]:
        """The samplers that a node depends on, itself among them."""
        return self._of_nodes[node]

    def of(self, column: RowColumn) -> frozenset[int]:
        """The samplers that a column depends on."""
        return self._of(column.ref, self._of_nodes)

    def sampled(self, column: RowColumn) -> set[int]:
        """The calls that sampled a column of tokens; none for other columns."""
        calls = self.program.origins.samples(column).values() if is_token_column(column.spec) else ()
        return self.samplers.intersection(calls)

    def is_sampled_with(self, column: RowColumn, calls: Mapping[int, object]) -> bool:
        """Whether one of these calls made a column beside the tokens, such as their log-probs."""
        stored = stored_column(self.program.graph, column.ref)
        return isinstance(stored, Ref) and stored.node in calls
