"""``check_rows``: does a function depend only on the rows that it declares?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hfdsl.errors import HfError, WiringError
from hfdsl.graph.body_checks import inputs_unchanged
from hfdsl.graph.operations import SIGNATURE
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.testing.arguments import given_of, nothing, number_of, refused, seed_of, tolerance_of
from hfdsl.testing.code import as_code
from hfdsl.testing.compare import first_difference
from hfdsl.testing.row_calls import columns_on, columns_with_rows, counted, on_rank, picked, picked_rows
from hfdsl.testing.row_cases import RowCase, fewest, find_case, lacking
from hfdsl.types.batches import schema
from hfdsl.types.joining import rows_after_rows
from hfdsl.types.rows import Grouped, GroupedBy, WholeRows

if TYPE_CHECKING:
    pass

__tracebackhide__ = True  # pytest shows the user's own lines

RAISES = "a body must work on any rows of its types, or given= needs a strategy for those that it accepts: "
NOTHING: Mapping[str, Any] = MappingProxyType({})


class BrokenRows(AssertionError):  # noqa: N818  # that it is an error is in its base
    """A function depends on other rows than it declares, or is no function of its rows at all."""


def check_rows(
    function: Callable[..., Any],
    *,
    given: Mapping[str, Any] = NOTHING,
    needed: bool = True,
    multiple: int = 1,
    tolerance: float = 0.0,
    max_examples: int = 100,
    seed: int = 0,
) -> None:
    """Hold a function under ``@hf.function`` to its ``rows=``: on parts that respect it, joined, it is as on the whole.

    It must leave its arguments as they are, too, since others read the same memory, and return what it declares, the
    same again when it is called again. Random streams are those of a run.

    Its arguments are drawn at random; plain ones are ``given`` by name, as is the one that ``hf.GroupedBy`` names, and
    a hypothesis strategy for any other: ``given={"group": 4}``. Groups are given in two parts, and in another order.

    Where groups, or all rows, are declared and no example shows that they are ``needed``, that is reported too: the
    function could be split further, into single rows or smaller groups. All rows come in a ``multiple``, of a function
    that works with no other.

    Raises:
        BrokenRows: with the smallest arguments that show it.
        DefinitionError: HF921 for what is no ``@hf.function``, or an option of another kind; HF922 for a function whose
            result has no rows to compare.
        WiringError: HF202 if ``given`` names no parameter, HF203 if it lacks one that takes a plain value.
        ImportError: where hypothesis is missing.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Scores(hf.Batch):
    ...     reward: hf.f32[B]
    >>> @hf.function(rows=hf.Grouped(2))
    ... def centre(scores: Scores) -> Scores:
    ...     pairs = scores.reward.tensor.view(-1, 2)
    ...     return Scores(reward=(pairs - pairs.mean(1, keepdim=True)).flatten())
    >>> check_rows(centre, max_examples=20)
    >>> @hf.function
    ... def whiten(scores: Scores) -> Scores:
    ...     return Scores(reward=scores.reward.tensor - scores.reward.tensor.mean())
    >>> check_rows(whiten)
    Traceback (most recent call last):
    hfdsl.testing.rows.BrokenRows: 'whiten' declares rows=Independent, and gives other rows on parts than on the whole
    ...
    """
    signature = _signature(function)
    number_of("check_rows", "multiple=", multiple)
    number_of("check_rows", "max_examples=", max_examples)
    tolerance, seed = tolerance_of("check_rows", tolerance), seed_of("check_rows", seed)
    given = given_of("check_rows", f"'{signature.name}'", given, [port.name for port in signature.ports])
    unit = _unit(signature, given)
    size = unit or multiple

    def fault(case: RowCase) -> str | None:
        """The mistake of the function on this case, as text."""
        if mistake := _changed_argument(signature, case, size):
            return f"'{signature.name}' writes into its arguments, which others read too\n  {mistake}"
        if mistake := _wrong_result(signature, case, size, tolerance):
            return mistake
        mistake = _torn(signature, case, size, tolerance) if unit is not None else None
        return _report(signature, mistake) if mistake else None

    last_mistake: list[tuple[RowCase, str]] = []

    def noted_fault(case: RowCase) -> str | None:
        if mistake := fault(case):
            last_mistake[:] = [(case, mistake)]
        return mistake

    case = find_case(signature, given, size, noted_fault, max_examples, seed)
    if case is not None:
        case = fewest(case, size, noted_fault)
        if mistake := fault(case):
            raise _broken(case, mistake)
    for case, mistake in last_mistake:
        raise _broken(
            case, f"{mistake}\n  this was not seen again with equal arguments: the function is not deterministic"
        )
    if needed and unit != 1:
        _are_needed(signature, given, unit, multiple, tolerance, max_examples, seed)


def _broken(case: RowCase, mistake: str) -> BrokenRows:
    return BrokenRows("\n".join([mistake, *(f"  {name} = {as_code(value)}" for name, value in case.arguments.items())]))


def _signature(function: Any) -> Signature:
    read_signature = getattr(function, SIGNATURE, None)
    if read_signature is None or isinstance(function, type):
        raise refused("check_rows", "function", "one under @hf.function", function)
    signature: Signature = read_signature()
    if not isinstance(signature.rows, WholeRows) and not columns_with_rows(signature.returns):
        raise nothing("check_rows", f"the result of '{signature.name}' has no rows")
    return signature


def _unit(signature: Signature, arguments: Mapping[str, Any]) -> int | None:
    """The rows of a group, None if all rows belong together."""
    match signature.rows:
        case WholeRows():
            return None
        case Grouped(n):
            return n
        case GroupedBy(parameter):
            if parameter not in arguments:
                raise lacking(f"'{signature.name}' is grouped by '{parameter}'", parameter, "4")
            return number_of("check_rows", f"{parameter!r} in given=", arguments[parameter])
    return 1


# -- what is asked of them


def _changed_argument(signature: Signature, case: RowCase, size: int) -> str | None:
    """The first argument that is another after the call than before.

    Values are compared too: a write into an object of a row is not counted.
    """
    before = {name: picked(value, range(case.units * size)) for name, value in case.arguments.items()}
    copies = {name: copy for name, value in before.items() if (copy := _copied(value)) is not None}
    arguments = before | copies
    try:
        rows = range(case.units * size)
        with inputs_unchanged(signature.name, arguments), on_rank(0, rows):
            signature.body(**arguments)
    except HfError as error:
        return error.message if error.code == "HF703" else None
    except Exception:  # noqa: BLE001  # what it raises, the rows show
        return None
    for name, copy in copies.items():
        if wrong := first_difference(before[name], copy):
            return f"argument '{name}': {wrong.message}"
    return None


def _copied(value: Any) -> Any:
    """A copy to compare with later; None for a value that does not equal its copy, which cannot be compared."""
    try:
        copy = deepcopy(value)
    except Exception:  # noqa: BLE001  # users' objects may refuse
        return None
    return copy if first_difference(copy, value) is None else None


def _wrong_result(signature: Signature, case: RowCase, size: int, tolerance: float) -> str | None:
    """The mistake in what the function returns on all rows, whatever it depends on."""
    every = range(case.units * size)
    declared = f"'{signature.name}' declares rows={signature.rows}"
    try:
        first, second = (columns_on(signature, case.arguments, every) for _ in range(2))
    except Exception as error:  # noqa: BLE001  # of whatever the function does
        if isinstance(error, WiringError) and error.code == "HF805":
            return f"'{signature.name}' does not return what it declares\n  {error.message}"
        return f"{declared}, and raises\n  {_raised(error, len(every))}"
    for name, expected in first.items():
        if difference := first_difference(expected, second[name], tolerance):
            again = f"called again with equal arguments: {_in(name)}{difference.message}"
            return (
                f"'{signature.name}' is not deterministic: it keeps state, or has a random stream of its own\n  {again}"
            )
    return None


def _raised(error: Exception, rows: int) -> str:
    text = error if isinstance(error, HfError) else f"{type(error).__name__}: {error}"
    return f"{RAISES}on {counted(rows)} it raises {text}"


def _torn(signature: Signature, case: RowCase, unit: int, tolerance: float) -> str | None:
    """The difference in the results for the groups in two parts, or in another order."""
    every = range(case.units * unit)
    edge = case.cut * unit
    order = [group * unit + i for group in case.order() for i in range(unit)]
    rows: Sequence[int] = every
    try:
        unsplit = columns_on(signature, case.arguments, every)
        parts = []
        for rank, rows in enumerate((every[:edge], every[edge:]) if 0 < edge < len(every) else ()):
            parts.append(columns_on(signature, case.arguments, rows, rank))
        rows = order
        reordered = columns_on(signature, case.arguments, order)
    except Exception as error:  # noqa: BLE001  # a function that works on some rows and not on others
        return _raised(error, len(rows))
    for name, expected in unsplit.items():
        if expected is None:
            continue
        joined = [part[name] for part in parts]
        if joined and (difference := first_difference(expected, _joined(joined), tolerance)):
            return f"rows 0 to {edge - 1} and the others, given apart: {_in(name)}{difference.message}"
        if difference := first_difference(picked_rows(expected, _turned(case, expected)), reordered[name], tolerance):
            return f"groups given in the order {case.order()}: {_in(name)}{difference.message}"
    return None


def _in(name: str) -> str:
    return f"column '{name}', " if name else ""


def _joined(parts: Sequence[Any]) -> Any:
    return None if any(part is None for part in parts) else rows_after_rows(parts)


def _turned(case: RowCase, column: Any) -> list[int]:
    """The rows of a column that groups in another order would give."""
    size = len(column) // case.units
    return [group * size + i for group in case.order() for i in range(size)]


def _are_needed(
    signature: Signature,
    arguments: Mapping[str, Any],
    unit: int | None,
    multiple: int,
    tolerance: float,
    max_examples: int,
    seed: int,
) -> None:
    """Report groups, or all rows, that are declared where single rows or smaller groups would do."""
    if _returns_one_value(signature):
        return  # a value of all rows
    size = unit or multiple
    for rows in range(1, size if unit else size + 1):
        if size % rows:
            continue

        def shows(case: RowCase, rows: int = rows) -> str | None:
            return _torn_in(signature, case, size, rows, tolerance)

        if find_case(signature, arguments, size, shows, max_examples, seed, smallest=False) is None:
            declares = f"'{signature.name}' declares rows={signature.rows}"
            beyond, split = ("", "split") if rows == 1 else (f" outside of its {rows}", "split further")
            enough = "hf.Independent" if rows == 1 else f"hf.Grouped({rows})"
            raise BrokenRows(
                f"{declares}, and in none of {max_examples} examples a row depends on another{beyond}: "
                f"declare rows={enough}, so that it can be {split}, or say check_rows(..., needed=False)"
            )


def _returns_one_value(signature: Signature) -> bool:
    """Whether something of the result is one value of all rows: a metric, or a plain value."""
    kind = signature.returns
    return len(columns_with_rows(kind)) < (len(schema(kind.record).fields) if isinstance(kind, RecordType) else 1)


def _torn_in(signature: Signature, case: RowCase, size: int, rows: int, tolerance: float) -> str | None:
    """The difference in the results for groups of so many ``rows``, whatever the function declares."""
    every = RowCase(case.arguments, case.units * size // rows, case.cut, case.turn)
    return _torn(signature, every, rows, tolerance) if every.units > 1 else None


def _report(signature: Signature, wrong: str) -> str:
    does = "raises" if wrong.startswith(RAISES) else "gives other rows on parts than on the whole"
    return f"'{signature.name}' declares rows={signature.rows}, and {does}\n  {wrong}"
