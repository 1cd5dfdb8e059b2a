"""``--from LIBRARY``: configurations of other libraries on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from hfdsl.check.report import Report
from hfdsl.interop.checking import check, explain
from hfdsl.interop.readers import LIBRARIES, Library
from hfdsl.interop.reading import Inputs
from hfdsl.interop.text import COMMAND_LINE, SourceText
from hfdsl.tools import output
from hfdsl.tools.importing import UsageError
from hfdsl.types.similar_names import closest


def reports(path: str, library: str, arguments: str = "", environment: Sequence[str] = ()) -> Iterator[Report]:
    """The reports on a configuration.

    Raises:
        UsageError: for a library that hfdsl does not read, and for a variable that is no ``NAME=VALUE``.
        ReadError: HF970 if the configuration cannot be read.
    """
    settings, inputs = library_inputs(path, library, arguments, environment)
    yield from check(settings, inputs)


def show_pages(path: str, library: str, arguments: str, environment: Sequence[str], *, as_json: bool) -> int:
    """``hfdsl explain --from LIBRARY``: a page about each run.

    Raises:
        UsageError: for a library that hfdsl does not read, and for a variable that is no ``NAME=VALUE``.
        ReadError: HF970 if the configuration cannot be read.
    """
    for number, page in enumerate(explain(*library_inputs(path, library, arguments, environment))):
        if as_json:
            output.show_json(asdict(page))
        else:
            output.say(f"\n{page}" if number else str(page))
    return output.OK


def library_inputs(path: str, library: str, arguments: str, environment: Sequence[str]) -> tuple[Library, Inputs]:
    """The library and the inputs that a command line names.

    Raises:
        UsageError: for a library that hfdsl does not read, and for a variable that is no ``NAME=VALUE``.
    """
    name, _, version = library.partition("==")
    if name not in LIBRARIES:
        raise UsageError(f"hfdsl reads no configurations of '{name}'; {closest(name, sorted(LIBRARIES))}")
    pairs = [pair.partition("=") for pair in environment]
    wrong = next(
        (pair for pair, (key, equals, _) in zip(environment, pairs, strict=True) if not key or not equals), None
    )
    if wrong is not None:
        raise UsageError(f"--env takes NAME=VALUE, not '{wrong}'")
    variables = {key: value for key, _, value in pairs}
    return LIBRARIES[name], Inputs(path, SourceText(COMMAND_LINE, arguments) if arguments else None, variables, version)
