"""The arguments of the checks in ``hfdsl.testing``: parsed once, and rejected with a message if they are invalid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

from hfdsl.errors import DefinitionError, WiringError
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import Worker
from hfdsl.testing.code import as_code
from hfdsl.types.dims import Dim
from hfdsl.types.numbers import is_count, is_number
from hfdsl.types.similar_names import closest

K = TypeVar("K")

__tracebackhide__ = True  # pytest shows the user's own lines


def refused(check: str, argument: str, takes: str, got: object) -> DefinitionError:
    """HF921: an argument of another kind than a check takes."""
    return DefinitionError("HF921", f"{check}: {argument} takes {takes}, got {_value_text(got)}")


def nothing(check: str, why: str) -> DefinitionError:
    """HF922: a check that would pass without having compared anything."""
    return DefinitionError("HF922", f"{check} would compare nothing: {why}")


def _value_text(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = as_code(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


def meshes_of(check: str, meshes: object) -> tuple[Mesh, ...] | None:
    """The meshes of ``meshes=``, None if it is left out."""
    if meshes is None:
        return None
    if isinstance(meshes, Mesh):
        raise refused(check, "meshes=", f"meshes in a list, as in meshes=[{as_code(meshes)}]", meshes)
    listed = several_of(check, "meshes=", "meshes in a list, as in meshes=[hf.Mesh(dp=2)]", meshes)
    for mesh in listed:
        if not isinstance(mesh, Mesh):
            raise refused(check, "meshes=", "meshes, each an hf.Mesh", mesh)
    if not listed:
        raise nothing(check, "meshes= is empty")
    return listed


def names_of(check: str, argument: str, option: object, choices: Sequence[str], kind: str) -> tuple[str, ...]:
    """The valid names that an option gives, one or several; all if it is omitted."""
    if option is None:
        return tuple(choices)
    article = "an" if kind[0] in "aeiou" else "a"
    several = f"the name of {article} {kind} or several in a list"
    names = (option,) if isinstance(option, str) else several_of(check, argument, several, option)
    for name in names:
        if not isinstance(name, str):
            raise refused(check, argument, several, name)
        if name not in choices:
            raise DefinitionError("HF921", f"{check}: no {kind} is called {name!r}; {closest(name, list(choices))}")
    if not names:
        raise nothing(check, f"{argument} is empty")
    return names


def several_of(check: str, argument: str, takes: str, items: object) -> tuple[Any, ...]:
    """The items of a list or of another iterable, which may be read only once."""
    if not isinstance(items, Iterable) or isinstance(items, (str, bytes, Mapping)):
        raise refused(check, argument, takes, items)
    return tuple(items)


def number_of(check: str, argument: str, number: object, least: int = 1) -> int:
    """A whole number that is not too small."""
    if not is_count(number, least):
        raise refused(check, argument, f"a whole number of at least {least}", number)
    return number


def tolerance_of(check: str, tolerance: object) -> float:
    """A tolerance, validated."""
    if not (is_number(tolerance) and tolerance >= 0):
        raise refused(check, "tolerance=", "a number of at least 0", tolerance)
    return float(tolerance)


def seed_of(check: str, seed: object) -> int:
    """A seed, validated."""
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        raise refused(check, "seed=", "a whole number", seed)
    return int(seed)


def items_of(check: str, argument: str, items: object, kind: type[K], takes: str) -> tuple[K, ...]:
    """The items of a list or of another iterable, each of one kind."""
    listed = several_of(check, argument, takes, items)
    for item in listed:
        if not isinstance(item, kind):
            raise refused(check, argument, takes, item)
    return listed


def named_of(check: str, argument: str, values: object, example: str) -> Mapping[str, Any]:
    """Values by name."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise refused(check, argument, f"values by name, as in {example}", values)
    return values


def given_of(check: str, subject: str, given: object, ports: Sequence[str]) -> Mapping[str, Any]:
    """Arguments of the function or method under test, each for one of its parameters; HF202 for one without."""
    arguments = named_of(check, "given=", given, f"given={{{ports[0]!r}: ...}}" if ports else "given={}")
    for name in arguments:
        if name not in ports:
            raise WiringError("HF202", f"{subject} has no parameter '{name}'; {closest(name, list(ports))}")
    return arguments


def sizes_of(check: str, sizes: object, argument: str = "dims") -> dict[Any, int]:
    """Sizes by dim."""
    takes = "sizes by dim, as in {B: 8}"
    if not isinstance(sizes, Mapping):
        raise refused(check, argument, takes, sizes)
    for dim, size in sizes.items():
        if not isinstance(dim, TypeVar) and not (isinstance(dim, type) and issubclass(dim, Dim)):
            raise refused(check, argument, takes, dim)
        number_of(check, f"the size of {dim.__name__}", size, 0)
    return dict(sizes)


def role_of(check: str, role: object) -> type[Worker]:
    """A role class."""
    if not isinstance(role, type) or not issubclass(role, Worker):
        raise refused(check, "the role", "a class derived from hf.Worker", role)
    return role
