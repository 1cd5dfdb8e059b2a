"""Dims are classes; dim expressions have a normal form, and three answers: proved, refuted, unknown.

An expression is a polynomial over dims with rational coefficients. Two expressions are equal when their normal forms
are; there is no solver behind it, so an answer is either certain or ``UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ForwardRef, Generic, Literal, TypeAlias, TypeGuard, TypeVar, get_args, get_origin

from hfdsl.errors import DefinitionError
from hfdsl.types.numbers import brief, is_count

X = TypeVar("X", covariant=True)
Y = TypeVar("Y", covariant=True)


def _refuse_arithmetic(left: object, right: object) -> Any:
    """Refuse ``B + 1``, which type checkers read as no type: HF101."""
    raise DefinitionError(
        "HF101",
        f"Python's operators do not combine dims, here {brief(left)} and {brief(right)}: write Add[...], Mul[...] or "
        "Div[...], with Literal[4] for the number 4",
    )


class DimType(type):
    """The metaclass of dims: a dim prints as its name."""

    if not TYPE_CHECKING:  # a type checker refuses them by itself
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse_arithmetic
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refuse_arithmetic

    def __repr__(cls) -> str:
        """The name alone: a dim stands in error messages."""
        return cls.__name__


class Dim(metaclass=DimType):
    """A size with a name; every dim is at least 1.

    >>> class B(Dim):
    ...     "Rows of a batch."
    >>> B
    B
    """

    def __new__(cls) -> Dim:
        """Refuse: HF101."""
        raise DefinitionError("HF101", f"dim '{cls.__name__}' is used as a class and has no instances")


class Add(Generic[X, Y]):
    """The sum of two dims: ``Add[P, R]``."""


class Mul(Generic[X, Y]):
    """The product of two dims: ``Mul[B, Literal[8]]``."""


class Div(Generic[X, Y]):
    """The exact quotient of two dims: ``Div[B, N]`` demands that N divides B, so ``Mul[Div[B, N], N]`` *is* B."""


@dataclass(frozen=True, slots=True)
class KeptGroups:
    """The number of groups that filter ``number`` keeps, known only at run time: at most ``most``."""

    number: int
    most: Size

    @property
    def __name__(self) -> str:
        """As messages show it."""
        return f"kept{self.number}"


Atom: TypeAlias = "type[Dim] | TypeVar | KeptGroups"
Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"  # sorted (atom, power); a negative power is an exact divisor


Sizes: TypeAlias = "int | Sequence[int]"
"""The value that a caller gives for a dim: its size, or several sizes to check in turn."""


class Answer(Enum):
    """The verdict on a statement over dims."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


def _order(atom: Atom) -> tuple[str, str, int]:
    # The id distinguishes dims of the same name: dims of two functions, or of one function that ran twice.
    return atom.__name__, getattr(atom, "__module__", "") or "", id(atom)


@dataclass(frozen=True, slots=True)
class Size:
    """A dim expression in normal form: monomials with their non-zero coefficients, sorted.

    >>> class P(Dim): ...
    >>> class R(Dim): ...
    >>> size(Add[P, R]) == size(Add[R, P])
    True
    >>> str(size(Add[P, R])), str(size(Mul[P, Literal[8]])), str(size(Div[P, Literal[4]]))
    ('P+R', 'P*8', 'P//4')
    """

    terms: tuple[tuple[Monomial, Fraction], ...]
    atoms: tuple[Atom, ...] = field(init=False, repr=False, compare=False)
    """The dims and type variables that occur, in order of their names."""
    bare: Atom | None = field(init=False, repr=False, compare=False)
    """The dim or type variable that this size consists of, or None for any other expression."""
    _hash: int = field(init=False, repr=False, compare=False)  # sizes are keys, and the hash of a fraction is slow

    def __post_init__(self) -> None:
        atoms = tuple(sorted({atom for monomial, _ in self.terms for atom, _ in monomial}, key=_order))
        object.__setattr__(self, "atoms", atoms)
        match self.terms:
            case [([(atom, 1)], 1)]:
                object.__setattr__(self, "bare", atom)
            case _:
                object.__setattr__(self, "bare", None)
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (self.terms,)  # a hash is another one in another process

    # -- algebra

    def __add__(self, other: Size) -> Size:
        return _collect([*self.terms, *other.terms])

    def __sub__(self, other: Size) -> Size:
        return self + other * constant(-1)

    def __mul__(self, other: Size) -> Size:
        return _product(self, other)

    def __truediv__(self, other: Size) -> Size:
        """Divide exactly by a constant or by a product of dims."""
        if len(other.terms) != 1:
            raise DefinitionError("HF101", f"cannot divide by '{other}': a divisor is a number or a product of dims")
        [(monomial, coefficient)] = other.terms
        inverse = tuple((atom, -power) for atom, power in monomial)
        return self * Size(((inverse, 1 / coefficient),))

    def substitute(self, sizes: Mapping[Any, Size]) -> Size:
        """Replace the dims that ``sizes`` names."""
        if self.bare is not None:
            return sizes.get(self.bare, self)
        if not any(atom in sizes for atom in self.atoms):
            return self
        numbers = {atom: sizes[atom].value for atom in self.atoms if atom in sizes}
        if len(numbers) == len(self.atoms) and None not in numbers.values():
            return constant(evaluate(self, numbers))
        terms: list[tuple[Monomial, Fraction]] = []
        for monomial, coefficient in self.terms:
            term = Size(((tuple(pair for pair in monomial if pair[0] not in sizes), coefficient),))
            for atom, power in monomial:
                for _ in range(abs(power) if atom in sizes else 0):
                    term = term * sizes[atom] if power > 0 else term / sizes[atom]
            terms += term.terms
        return _collect(terms)

    # -- questions

    @property
    def value(self) -> Fraction | None:
        """The number that this size is, or None if it depends on dims."""
        if not self.terms:
            return Fraction(0)
        if len(self.terms) == 1 and self.terms[0][0] == ():
            return self.terms[0][1]
        return None

    def equals(self, other: Size) -> Answer:
        """Whether both are the same size for every (PROVED) or no (REFUTED) choice of dims, each at least 1."""
        return Answer.PROVED if self is other else _compared(self, other)

    def divisible_by(self, divisor: int) -> Answer:
        """Whether ``divisor`` divides this size: certain from the coefficients alone, or UNKNOWN."""
        number = self.value
        if number is not None:
            return Answer.PROVED if _divides(divisor, number) else Answer.REFUTED
        integral = all(_divides(divisor, coefficient) for _, coefficient in self.terms)
        positive = all(power > 0 for monomial, _ in self.terms for _, power in monomial)
        return Answer.PROVED if integral and positive else Answer.UNKNOWN

    def __str__(self) -> str:
        return _text(self)


# A program has few sizes, and asks for them at every call.


@lru_cache(maxsize=1024)
def _product(left: Size, right: Size) -> Size:
    return _collect([(_times(m, n), a * b) for m, a in left.terms for n, b in right.terms])


@lru_cache(maxsize=1024)
def _compared(left: Size, right: Size) -> Answer:
    gap = (left - right).terms
    if not gap:
        return Answer.PROVED
    one_sign = len({coefficient > 0 for _, coefficient in gap}) == 1
    return Answer.REFUTED if one_sign else Answer.UNKNOWN


@lru_cache(maxsize=1024)
def _text(size: Size) -> str:
    return "+".join(_term_text(m, c) for m, c in size.terms).replace("+-", "-") or "0"


@lru_cache(maxsize=1024)
def constant(number: int | Fraction) -> Size:
    """The size that is a number."""
    return Size((((), Fraction(number)),) if number else ())


@lru_cache(maxsize=1024)
def atom_size(atom: Atom) -> Size:
    """The size that is one dim or one type variable."""
    return Size(((((atom, 1),), Fraction(1)),))


def size(expression: object) -> Size:
    """Normalize a dim in a column's brackets.

    Raises:
        DefinitionError: HF101 if it is not a dim, ``Add``, ``Mul``, ``Div``, ``Literal[int]`` or a TypeVar.
    """
    if isinstance(expression, Size):
        return expression
    if isinstance(expression, TypeVar) or (_is_dim(expression) and expression is not Dim):
        return atom_size(expression)
    origin, arguments = get_origin(expression), get_args(expression)
    if origin in _OPERATIONS and len(arguments) == 2:
        left, right = arguments
        return _OPERATIONS[origin](size(left), size(right))
    if origin is Literal and len(arguments) == 1 and is_count(arguments[0]):
        return constant(arguments[0])
    if isinstance(expression, ForwardRef):
        quoted = expression.__forward_arg__
        raise DefinitionError(
            "HF101", f"'{quoted}' in quotes is not a dim; write {quoted}, defined at module level above"
        )
    shown = f"typing.Literal[{', '.join(map(brief, arguments))}]" if origin is Literal else brief(expression)
    dims = "a class derived from hf.Dim, or Add, Mul or Div of dims"
    advice = f"write Literal[{expression}] for a fixed size" if is_count(expression) else f"use {dims}, or Literal[4]"
    raise DefinitionError("HF101", f"{shown} is not a dim; {advice}")


def quotients(expression: object) -> tuple[Size, ...]:
    """List every ``Div`` in a dim: each must be exact by itself, and a normal form does not keep them apart.

    >>> class B(Dim): ...
    >>> class R(Dim): ...
    >>> [str(quotient) for quotient in quotients(Add[Div[B, Literal[3]], Div[R, Literal[3]]])]
    ['B//3', 'R//3']
    >>> [str(quotient) for quotient in quotients(Div[Add[B, R], Literal[3]])]
    ['B//3+R//3']
    """
    origin = get_origin(expression)
    if origin not in _OPERATIONS:
        return ()
    inner = tuple(quotient for operand in get_args(expression) for quotient in quotients(operand))
    return (*inner, size(expression)) if origin is Div else inner


def _is_dim(value: object) -> TypeGuard[type[Dim]]:
    return isinstance(value, type) and issubclass(value, Dim)


_OPERATIONS: dict[Any, Callable[[Size, Size], Size]] = {Add: Size.__add__, Mul: Size.__mul__, Div: Size.__truediv__}


def solve(formal: Size, actual: Size, bound: Mapping[Any, Size]) -> dict[Any, Size] | None:
    """Bind the one unbound dim of ``formal`` so that it equals ``actual``; None if that takes a search.

    >>> class B(Dim): ...
    >>> class N(Dim): ...
    >>> {str(k): str(v) for k, v in (solve(size(Div[B, Literal[8]]), size(N), {}) or {}).items()}
    {'B': 'N*8'}
    """
    if formal.bare is not None and formal.bare not in bound:
        return {formal.bare: actual}
    free = [atom for atom in formal.atoms if atom not in bound]
    if not free:
        return {}
    if len(free) > 1:
        return None
    [atom] = free
    constant_part = _collect([t for t in formal.terms if atom not in dict(t[0])]).substitute(bound)
    linear = [t for t in formal.terms if atom in dict(t[0])]
    if len(linear) != 1 or dict(linear[0][0])[atom] != 1:
        return None
    [(monomial, coefficient)] = linear
    factor = Size(((tuple(pair for pair in monomial if pair[0] is not atom), coefficient),)).substitute(bound)
    if len(factor.terms) != 1:
        return None
    return {atom: (actual - constant_part) / factor}


def _divides(divisor: int, number: Fraction) -> bool:
    return number.denominator == 1 and number.numerator % divisor == 0


def _collect(terms: list[tuple[Monomial, Fraction]]) -> Size:
    if len(terms) == 1 and terms[0][1]:
        return Size(tuple(terms))
    sums: dict[Monomial, Fraction] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, Fraction(0)) + coefficient
    nonzero = [(m, c) for m, c in sums.items() if c]
    # Products before numbers, then by name: "P+R", "B*8", "P+1".
    return Size(tuple(sorted(nonzero, key=lambda t: (not t[0], [(*_order(a), -p) for a, p in t[0]]))))


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:  # times a number
        return left or right
    powers: dict[Atom, int] = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(((a, p) for a, p in powers.items() if p), key=lambda pair: _order(pair[0])))


def _term_text(monomial: Monomial, coefficient: Fraction) -> str:
    above = list(_factors(monomial, 1))
    below = list(_factors(monomial, -1))
    number, divisor = coefficient.numerator, coefficient.denominator
    if abs(number) != 1 or not above:
        above.append(str(abs(number)))
    if divisor != 1:
        below.append(str(divisor))
    return ("-" if number < 0 else "") + "*".join(above) + "".join(f"//{name}" for name in below)


def _factors(monomial: Monomial, sign: int) -> Iterator[str]:
    for atom, power in monomial:
        if power * sign > 0:
            yield from [atom.__name__] * abs(power)


def at_most(size: Size) -> Size:
    """A size with every filter keeping all its rows."""
    most = {atom: at_most(atom.most) for atom in size.atoms if isinstance(atom, KeptGroups)}
    return size.substitute(most) if most else size


def evaluate(expression: Size, sizes: Mapping[Any, Any]) -> Fraction:
    """Evaluate an expression; ``sizes`` has all of its dims."""
    total: int | Fraction = 0
    for monomial, coefficient in expression.terms:
        above, below = coefficient.numerator, coefficient.denominator
        for atom, power in monomial:
            number = sizes[atom]  # whole numbers above and below: arithmetic of fractions is slow
            if power > 0:
                above, below = above * number.numerator**power, below * number.denominator**power
            else:
                above, below = above * number.denominator**-power, below * number.numerator**-power
        total += above if below == 1 else Fraction(above, below)
    return Fraction(total)
