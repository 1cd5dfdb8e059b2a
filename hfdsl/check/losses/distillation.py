"""Interpretation of a body in terms of a distillation loss: does it fall as a student becomes like its teacher?

Whatever is called a teacher is one: a column, or a model. A worked example, of a record with ``teacher_logits``::

    student = self.model(batch.ids.tensor).logits                   numbers of the student
    teacher = batch.teacher_logits.tensor                           numbers of the teacher
    loss = -F.kl_div(student.log_softmax(-1), teacher.softmax(-1))  a divergence of sign -1
    loss.backward()                                                 a loss, which falls as the two grow apart

``divergences.py`` says what operations make of such numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Final

from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.names import last_name
from hfdsl.check.losses import divergences
from hfdsl.check.losses.divergences import DistillationValue, ModelNumbers, TeacherDivergence, TeacherGap
from hfdsl.check.losses.functions import MASKED_FORMULAS
from hfdsl.check.losses.minimized import MinimizedLosses
from hfdsl.check.losses.names import COEFFICIENT, LOG_PROB, OTHERS
from hfdsl.check.losses.sides import words_of
from hfdsl.check.losses.slopes import COUNT, Model, Number, number
from hfdsl.check.losses.terms import Several
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.signatures import StaticType
from hfdsl.types.columns import ColumnSpec

TEACHER: Final = "teacher"
"""The word for a model that a student is to become like."""

OTHER_WORDS: Final = frozenset(
    {"critic", "discriminator", "ema", "frozen", "old", "ref", "reference", "reward", "value"}
)
"""The words for models that are neither the student nor its teacher."""

KL_WORDS: Final = frozenset({"kl", "kld", "kldiv"})
"""The words for an object that gives a KL, such as ``nn.KLDivLoss()``."""


class DistillationInterpretation(MinimizedLosses[DistillationValue]):
    """The interpretation of a body in terms of a distillation loss."""

    def begin(self) -> None:
        """Begin without losses."""
        super().begin()
        self.names |= {name: COUNT for name, kind in self.ports.items() if isinstance(kind, StaticType)}

    # -- functions

    # -- values

    def joined(self, left: DistillationValue, right: DistillationValue) -> DistillationValue:
        """One of two values."""
        return divergences.either(left, right)

    def detached(self, value: DistillationValue) -> DistillationValue:
        """A value without its gradient."""
        return divergences.constant(value)

    def of_part(self, value: DistillationValue, position: int) -> DistillationValue:
        """The value at a position of a tuple."""
        if isinstance(value, Several):
            part: DistillationValue = value.values[position] if position < len(value.values) else None
            return part
        return value if isinstance(value, ModelNumbers) else None

    def of_column(self, spec: ColumnSpec, path: str) -> DistillationValue:
        """The numbers of a column: a teacher's, old log-probs of the student, or numbers that are at least 0."""
        name = path.rpartition(".")[2]
        if not is_float_column(spec):
            return COUNT
        is_of_teacher, picked = TEACHER in words_of(path), len(spec.dims) < 3
        if LOG_PROB.fullmatch(name):
            if is_of_teacher or not OTHERS.fullmatch(path.replace("old", "")):
                return ModelNumbers("teacher" if is_of_teacher else "student", "log_probs", picked, constant=True)
            return None
        if not is_of_teacher:
            return None
        return ModelNumbers("teacher", "probs" if "prob" in name else "any", picked, constant=True)

    def attribute(self, node: ast.Attribute, owner: ast.expr, name: str) -> DistillationValue:
        """An attribute: a number of the role, a model that it keeps, or a part of what a model gives."""
        if name in self.numbers and last_name(owner) == "self":
            return number(self.numbers[name])
        source = self.value(owner)
        if isinstance(source, Model):
            if COEFFICIENT.fullmatch(name):
                return COUNT if self.trusts_coefficients or "temperature" in name else Number()
            return Model(source.words.union(words_of(name)))
        if isinstance(source, ModelNumbers) or source is None:
            return source
        return self.of_operation(Operation(name, node, source, is_method=True))

    # -- operations

    def of_operation(self, operation: Operation[DistillationValue]) -> DistillationValue:
        """The result of an operation, also of a model that cannot be read."""
        function, source, others = operation.function, operation.source, operation.others
        if function in ("backward", "grad"):
            self.minimize(operation)
            return None
        if function in ("detach", "item", "tolist"):
            return self.detached(source)
        if isinstance(source, Model) and isinstance(operation.node, ast.Call) and operation.is_method:
            if function == "scale" and others:
                return others[0]
            return self.of_model(source.words.union(words_of(function)), function, others, operation.node)
        if isinstance(source, Model) and function == SUBSCRIPT:  # of a table, such as an embedding
            return self.of_model(source.words, "", others, operation.node)
        return divergences.operation_result(operation, self.place(operation.node))

    def of_model(
        self, words: frozenset[str], function: str, given: Sequence[DistillationValue], call: ast.expr
    ) -> DistillationValue:
        """The output of a model, or of a method that cannot be read, by its name."""
        if divergences.of_both(given):
            return None if KL_WORDS.isdisjoint(words) else TeacherDivergence(frozenset({1}), self.place(call))
        is_plain = not any(isinstance(value, (TeacherDivergence, TeacherGap, ModelNumbers)) for value in given)
        if not is_plain or not words.isdisjoint(OTHER_WORDS):
            return None
        is_picked = LOG_PROB.fullmatch(function) is not None
        side: divergences.DistillationSide = "teacher" if TEACHER in words else "student"
        return ModelNumbers(side, "log_probs" if is_picked else "any", is_picked)

    # -- calls

    def call(self, call: ast.Call) -> DistillationValue:
        """The result of a call: also of a model under a name, and of a distribution."""
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        match call.func:
            case ast.Name(name) if isinstance(model := self.names.get(name), Model):
                return self.of_model(model.words, "", [self.value(argument) for argument in given], call)
            case ast.Name("Categorical") | ast.Attribute(_, "Categorical") if given:
                return self.value(given[0])
            case ast.Name("kl_divergence") if len(given) == 2:
                return divergences.divergence(self.value(given[0]), self.value(given[1]), self.place(call))
        return super().call(call)

    def of_formula(
        self,
        call: ast.Call,
        formula: FunctionType,
        positional: Sequence[DistillationValue],
        named: Mapping[str, DistillationValue],
    ) -> DistillationValue:
        """The result of a formula that masks numbers, or takes their mean."""
        return next(iter(positional), None) if formula.__name__ in MASKED_FORMULAS else None
