"""What the checks of ``hfdsl.testing`` are asked for: read once, and refused in words where it has no meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from hfdsl.errors import DefinitionError, WiringError
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import Worker
from hfdsl.testing.code import as_code
from hfdsl.types.batches import closest
from hfdsl.types.dims import Dim
from hfdsl.types.numbers import is_count, is_number

__tracebackhide__ = True  # pytest shows the user's own lines


def refused(check: str, argument: str, takes: str, got: object) -> DefinitionError:
    """HF921: an argument of another kind than a check takes."""
    return DefinitionError("HF921", f"{check}: {argument} takes {takes}, got {_shown(got)}")


def nothing(check: str, why: str) -> DefinitionError:
    """HF922: a check that would pass without having compared anything."""
    return DefinitionError("HF922", f"{check} would compare nothing: {why}")


def _shown(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = as_code(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


def meshes_of(check: str, given: object) -> tuple[Mesh, ...] | None:
    """The meshes of ``meshes=``, None where it is left out."""
    if given is None:
        return None
    if isinstance(given, Mesh):
        raise refused(check, "meshes=", f"meshes in a list, as in meshes=[{as_code(given)}]", given)
    found = several_of(check, "meshes=", "meshes in a list, as in meshes=[hf.Mesh(dp=2)]", given)
    for one in found:
        if not isinstance(one, Mesh):
            raise refused(check, "meshes=", "meshes, each an hf.Mesh", one)
    if not found:
        raise nothing(check, "meshes= is empty")
    return found


def names_of(check: str, argument: str, given: object, known: Sequence[str], what: str) -> tuple[str, ...]:
    """The names that an option gives, one or several, each of which there is; all where it is left out."""
    if given is None:
        return tuple(known)
    several = f"the name of a {what} or several in a list"
    found = (given,) if isinstance(given, str) else several_of(check, argument, several, given)
    for name in found:
        if not isinstance(name, str):
            raise refused(check, argument, several, name)
        if name not in known:
            raise DefinitionError("HF921", f"{check}: no {what} is called {name!r}; {closest(name, list(known))}")
    if not found:
        raise nothing(check, f"{argument} is empty")
    return found


def several_of(check: str, argument: str, takes: str, given: object) -> tuple[Any, ...]:
    """What is given in a list or another thing that can be gone through once."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise refused(check, argument, takes, given)
    return tuple(given)


def number_of(check: str, argument: str, given: object, least: int = 1) -> int:
    """A whole number that is not too small."""
    if not is_count(given, least):
        raise refused(check, argument, f"a whole number of at least {least}", given)
    return given


def tolerance_of(check: str, given: object) -> float:
    """How far numbers may be apart."""
    if not (is_number(given) and given >= 0):
        raise refused(check, "tolerance=", "a number of at least 0", given)
    return float(given)


def named_of(check: str, argument: str, given: object, example: str) -> Mapping[str, Any]:
    """Values by name."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise refused(check, argument, f"values by name, as in {example}", given)
    return given


def given_of(check: str, what: str, given: object, ports: Sequence[str]) -> Mapping[str, Any]:
    """Arguments of the function or method under test, each of which has a parameter; HF202 for one that has none."""
    found = named_of(check, "given=", given, f"given={{{ports[0]!r}: ...}}" if ports else "given={}")
    for name in found:
        if name not in ports:
            raise WiringError("HF202", f"{what} has no parameter '{name}'; {closest(name, list(ports))}")
    return found


def sizes_of(check: str, given: object) -> dict[Any, int]:
    """Sizes by dim."""
    takes = "sizes by dim, as in {B: 8}"
    if not isinstance(given, Mapping):
        raise refused(check, "dims", takes, given)
    for dim, size in given.items():
        if not isinstance(dim, TypeVar) and not (isinstance(dim, type) and issubclass(dim, Dim)):
            raise refused(check, "dims", takes, dim)
        number_of(check, f"the size of {dim.__name__}", size, 0)
    return dict(given)


def role_of(check: str, given: object) -> type[Worker]:
    """A role class."""
    if not isinstance(given, type) or not issubclass(given, Worker):
        raise refused(check, "the role", "a class derived from hf.Worker", given)
    return given
