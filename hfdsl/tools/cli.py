"""The command line: ``hfdsl check | requires | plan | draw | run TARGET``, ``hfdsl train CONFIG``, and others."""

from __future__ import annotations

import argparse
import linecache
import os
import shlex
import sys
import traceback
from collections.abc import Sequence

import hfdsl
from hfdsl.check.report import CheckError
from hfdsl.errors import HfError
from hfdsl.tools import output
from hfdsl.tools.command_parser import command_parser
from hfdsl.tools.importing import UsageError

STEPPING = ("run", "train", "replay")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    >>> main(["explain", "HF999"])
    2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        output.say(command_parser().format_help().rstrip(), file=sys.stderr)
        return output.USAGE
    arguments = _arguments(words)
    linecache.checkcache()  # files may have changed since an earlier command of this process
    # The steps of a run are the program's own: what they print belongs to the people who watch it. A server speaks on
    # stdout itself.
    if arguments.name == "mcp" or (arguments.name in STEPPING and arguments.format == "human"):
        return _outcome(arguments)
    with output.own_stdout(for_good=argv is None):
        return _outcome(arguments)


def _arguments(words: list[str]) -> argparse.Namespace:
    """The arguments; with ``--from``, those behind ``--`` belong to the configuration."""
    behind: list[str] = []
    if "--" in words and any(word.partition("=")[0] == "--from" for word in words[: words.index("--")]):
        place = words.index("--")
        words, behind = words[:place], words[place + 1 :]
    parser = command_parser()
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        (arguments.parser if arguments.name else parser).refuse(unknown, words)
    if arguments.name is None:
        parser.error("name a command; 'hfdsl --help' lists them")
    arguments.arguments = shlex.join(behind)
    return arguments


def _outcome(arguments: argparse.Namespace) -> int:
    """Run the command of a command line, and report the errors that it raises."""
    try:
        code: int = arguments.command(arguments)
        output.stdout().flush()
    except UsageError as error:
        output.say(f"hfdsl {arguments.name}: {error}", file=sys.stderr)
        return output.USAGE
    except CheckError as error:
        output.show_report(error.report, arguments)
        return output.FINDINGS
    except HfError as error:
        output.show_error(error, arguments)
        return output.FINDINGS
    except KeyboardInterrupt:
        output.say("interrupted", file=sys.stderr)
        return output.INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.stdout().fileno())
        return output.FINDINGS
    except Exception as error:  # noqa: BLE001  # every mistake of a user has been reported above
        if isinstance(error, OSError) and error.filename and error.filename == getattr(arguments, "trace", None):
            output.say(f"hfdsl {arguments.name}: cannot write '{error.filename}': {error.strerror}", file=sys.stderr)
            return output.USAGE  # a disk that is full in the middle of a run
        traceback.print_exc()
        output.say(f"\nthis is a bug in hfdsl {hfdsl.__version__}; please report it with the program", file=sys.stderr)
        return output.BUG
    return code
