"""The commands and options of ``hfdsl``, and what a parser says of misspelled ones."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeAlias

import hfdsl
from hfdsl.protocols.queueing import DISCIPLINES
from hfdsl.tools import commands
from hfdsl.types.numbers import count_range, in_digits, is_count
from hfdsl.types.similar_names import nearest

DESCRIPTION = "Check, plan, draw and run typed dataflows for reinforcement-learning post-training."

EPILOG = """\
examples:
  hfdsl check train.py --set B=96             every mistake that can be known before launch
  hfdsl check --from verl run.sh              the same for a verl, TRL, NeMo-RL or OpenRLHF script
  hfdsl plan train.py                         what runs where, and which bytes move
  hfdsl train experiment.toml                 check, then train
  hfdsl explain HF310                         what a code means, with a wrong and a right program

TARGET is path/to/file.py:attribute or package.module:attribute, or the TOML file of a run. The attribute is an
hf.Experiment, a function under @hf.dataflow, or a function without parameters that returns one; it may be omitted
if the module has only one.

exit codes: 0 clean, 1 findings or a failed run, 2 usage, 3 a bug in hfdsl, 130 interrupted
"""

AddCommand: TypeAlias = Callable[..., argparse.ArgumentParser]
"""A function of a command's name, its summary and the parents of its parser."""

TRACE = "write the timelines of all steps, for Perfetto or chrome://tracing"


class Parser(argparse.ArgumentParser):
    """A parser of a command, which suggests the choice or option that a misspelled one is closest to."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)  # --resum could become another option's prefix

    def refuse(self, unknown: Sequence[str], words: Sequence[str]) -> NoReturn:
        """Report arguments that the command does not take, of all its ``words``, and exit."""
        options = re.findall(r"(?<!\w)--?[a-z-]+", self.format_usage())
        option = next((word for word in unknown if word.startswith("-")), "")
        name = option.partition("=")[0]
        run_fields = _run_fields(words, name) if "--set" in options else {}
        near = nearest(name.replace("_", "-"), [*options, *run_fields])
        if near is not None and near not in options:
            near = f"--set {run_fields[near]}={_value_of(option, words)}"
        suggestion = f"; did you mean '{near}'?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion}")

    def error(self, message: str) -> NoReturn:
        """Report wrong usage and exit."""
        invalid = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        super().error(message + _suggestion(invalid[1], re.findall(r"[\w-]+", invalid[2])) if invalid else message)


def _suggestion(word: str, choices: Sequence[str]) -> str:
    near = nearest(word, choices)
    return f"; did you mean '{near}'?" if near else ""


def _run_fields(words: Sequence[str], name: str) -> Mapping[str, str]:
    """The fields of the TOML file among the words, by the options that people give instead of ``--set``.

    A field of a table is one if the option has its ``name``.
    """
    if not any(word.endswith(".toml") for word in words):
        return {}
    from hfdsl.rl.training.run_config import RunConfig

    of_run = [field.name for field in fields(RunConfig)]
    of_table = [name[2:].replace("-", "_")] if "." in name else []
    return {f"--{field.replace('_', '-')}": field for field in (*of_run, *of_table)}


def _value_of(option: str, words: Sequence[str]) -> str:
    """The value of an option, within it or in the next word; ``"VALUE"`` if it has none."""
    _, equals, value = option.partition("=")
    if equals:
        return value
    following = next(iter(words[words.index(option) + 1 :]), "")
    return following if following and not following.startswith("-") and not following.endswith(".toml") else "VALUE"


def command_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="hfdsl", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"hfdsl {hfdsl.__version__}")
    subparsers = parser.add_subparsers(dest="name", title="commands", metavar="COMMAND")

    form = Parser(add_help=False)
    form.add_argument("--format", choices=["human", "json"], default="human", help="for people or machines")
    sizes = Parser(add_help=False)
    sizes.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="DIM=SIZE",
        help="override the size of a dim, or FIELD=VALUE of a TOML file; repeatable",
    )
    target = Parser(add_help=False, parents=[form, sizes])
    target.add_argument(
        "target", metavar="TARGET", help="file.py:attribute, package.module:attribute, or a run's TOML file"
    )

    def command(name: str, summary: str, *parents: Parser) -> argparse.ArgumentParser:
        added = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", parents=parents
        )
        added.set_defaults(command=getattr(commands, name), parser=added)
        return added

    cluster = Parser(add_help=False)
    cluster.add_argument("--cluster", metavar="FILE", help="a TOML file that describes the nodes")

    _add_check(command, sizes, cluster)
    command("requires", "print which sizes the program accepts", target)
    _add_plan(command, target, cluster)
    _add_simulate(command, target)
    draw = command("draw", "draw the plan", target)
    _add_library_options(draw)
    draw.add_argument("-o", "--output", metavar="FILE", help=".svg, .png or .mmd; without it Mermaid goes to stdout")
    _add_run(command, target)
    _add_run_commands(command, form, sizes)
    _add_library_commands(command, form)
    _add_machine_commands(command, form)
    return parser


def _add_check(command: AddCommand, sizes: argparse.ArgumentParser, cluster: argparse.ArgumentParser) -> None:
    check = command("check", "report every mistake that can be known before launch", sizes, cluster)
    check.add_argument(
        "target", metavar="TARGET", nargs="+", help="file.py:attribute, package.module:attribute, or a run's TOML file"
    )
    check.add_argument(
        "--format",
        choices=["human", "json", "sarif", "github", "agent"],
        default="human",
        help="for people, machines, or coding agents",
    )
    check.add_argument("--strict", action="store_true", help="warnings count in the exit code")
    check.add_argument(
        "--discover",
        action="store_true",
        help="every TARGET is a file or a folder; check all programs in it, and skip files that define none",
    )
    check.add_argument(
        "--elsewhere",
        action="store_true",
        help="the run will start on another machine: do not look for its files, folders and packages here",
    )
    check.add_argument(
        "--seconds",
        metavar="FILE",
        help="time the steps of programs with queues by a run's trace, or a TOML file with [seconds]",
    )
    _add_library_options(check)
    check.add_argument("--fix", action="store_true", help="apply the fixes that are certain, and report what remains")
    check.add_argument("--diff", action="store_true", help="with --fix: show the changes without making them")


def _add_plan(command: AddCommand, target: argparse.ArgumentParser, cluster: argparse.ArgumentParser) -> None:
    plan = command("plan", "print where everything runs and what moves", target, cluster)
    _add_library_options(plan)
    plan.add_argument(
        "--predict", metavar="FILE", help="predict a step's timeline from a run's trace, or a TOML file with [seconds]"
    )
    plan.add_argument(
        "--bandwidth",
        action="append",
        default=[],
        metavar="NAME=BYTES",
        help="with --predict: bytes per second of a copy to shared memory (copy), between nodes (network) or "
        "between GPUs (gpu); repeatable",
    )
    plan.add_argument(
        "--latency",
        type=float,
        metavar="SECONDS",
        help="with --predict: seconds from the end of a call to the start of the next",
    )


def _add_run(command: AddCommand, target: argparse.ArgumentParser) -> None:
    run = command("run", "run the experiment, one line per step", target)
    run.add_argument("--backend", choices=["local", "ray"], default="local", help="where to run (default: local)")
    run.add_argument(
        "--steps",
        type=_count,
        metavar="N",
        help="how many steps (default: as many as there are batches; of a run's file, its steps)",
    )
    run.add_argument(
        "--seed", type=_seed, metavar="S", help="the root of all random streams (default: the experiment's)"
    )
    run.add_argument("--trace", metavar="FILE", help=TRACE)


def _add_simulate(command: AddCommand, target: argparse.ArgumentParser) -> None:
    simulate = command("simulate", "compare step times for different lags of the queues", target)
    simulate.add_argument(
        "--seconds",
        metavar="FILE",
        help="a run's trace, or a TOML file with [seconds]; without it, an example is shown",
    )
    simulate.add_argument(
        "--utilization",
        action="append",
        default=[],
        metavar="CALL=SHARE",
        help="the share of its time in which a call that runs alone keeps its GPU busy (default: 1); repeatable",
    )
    simulate.add_argument(
        "--interference",
        action="append",
        default=[],
        metavar="CALL=SHARE",
        help="beside the call, one that keeps the GPU busy takes 1 + SHARE times as long (default: its utilization); "
        "repeatable",
    )
    simulate.add_argument(
        "--engine-utilization",
        action="append",
        default=[],
        metavar="CALL=SHARE",
        help="the share of its engine that one of several calls at once occupies (default: 1); repeatable",
    )
    simulate.add_argument(
        "--lag", action="append", default=[], metavar="K", help="a lag, or 'none' for no queue; repeatable"
    )
    simulate.add_argument("--steps", type=_count, default=200, metavar="N", help="how many steps (default: 200)")
    simulate.add_argument(
        "--seed", type=_seed, default=0, metavar="S", help="the seed of random durations (default: 0)"
    )
    simulate.add_argument("--late", choices=DISCIPLINES, help="what happens to late groups, for all queues")
    simulate.add_argument(
        "--keep", type=_share, metavar="SHARE", help="the share of groups that the filters keep (default: 1)"
    )
    simulate.add_argument("--trace", metavar="FILE", help=TRACE)


def _add_machine_commands(command: AddCommand, form: argparse.ArgumentParser) -> None:
    """The commands without a target."""
    mcp = command("mcp", "serve check, plan and other tools to coding agents (MCP)")
    mcp.description = (
        "Serve the tools check, explain, requires, plan and draw to coding agents, by the Model Context Protocol over "
        "stdin and stdout. All but explain execute the Python file that they are asked about."
    )
    mcp.set_defaults(format="human")
    mcp.add_argument(
        "--folder", metavar="FOLDER", help="where targets are found and patches apply (default: the current folder)"
    )
    mcp.add_argument(
        "--patience", type=_seconds, default=300.0, metavar="SECONDS", help="the longest a call takes (default: 300)"
    )

    doctor = command("doctor", "check this machine: versions, type checkers, GPUs, Ray", form)
    doctor.add_argument("--no-canary", action="store_true", help="skip the type checkers' test with seeded mistakes")
    doctor.add_argument("--ray", action="store_true", help="start a local Ray cluster and stop it")


def _add_library_commands(command: AddCommand, form: argparse.ArgumentParser) -> None:
    """The commands that are mostly about configurations of other libraries."""
    explain = command("explain", "explain a code, or list all codes", form)
    explain.add_argument("code", nargs="?", metavar="CODE", help="such as HF310; with --from, a configuration")
    _add_library_options(explain)

    convert = command("convert", "convert a run of another library to an hfdsl TOML file", form)
    convert.add_argument("target", metavar="TARGET", help="a script, YAML file or folder")
    _add_library_options(convert, required=True)
    convert.add_argument("-o", "--output", metavar="FILE", help="where the TOML file goes (default: stdout)")
    convert.add_argument("--run", type=int, metavar="N", help="of a script that starts several runs, the Nth")


def _add_library_options(command: argparse.ArgumentParser, *, required: bool = False) -> None:
    """The options of a command that reads configurations of other libraries."""
    command.add_argument(
        "--from",
        dest="library",
        metavar="LIBRARY",
        required=required,
        help="read a script, YAML file or folder of another library, such as verl; its overrides follow after --",
    )
    command.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="with --from: a variable of the environment in which the script will run; repeatable",
    )


def _add_run_commands(command: AddCommand, form: argparse.ArgumentParser, sizes: argparse.ArgumentParser) -> None:
    """The commands for runs that a file configures, and for their output."""
    _add_train(command, form)

    schema = command("schema", "write the JSON schema of a configuration, for editors", form)
    schema.add_argument(
        "subject",
        metavar="ALGORITHM|FILE",
        help="a ready-made algorithm such as grpo, module:name or file.py:name, 'deployment', or a TOML file",
    )
    schema.add_argument("-o", "--output", metavar="FILE", help="where the schema goes (default: stdout)")

    diff = command("diff", "list the differences between two programs or two runs", form, sizes)
    diff.add_argument("first", metavar="A", help="a target as for check, a run's folder, or a TOML file")
    diff.add_argument("second", metavar="B", help="the other one")
    diff.add_argument("--cluster", metavar="FILE", help="a TOML file that describes the nodes, for both programs")

    export = command("export", "save a trained model in transformers format", form)
    export.add_argument("run", metavar="RUN", help="the folder of a run")
    export.add_argument("-o", "--output", metavar="FOLDER", required=True, help="where the model goes")
    export.add_argument(
        "--role", metavar="ROLE", help="which role's model (default: actor, or the only role that learned)"
    )
    export.add_argument("--adapter", action="store_true", help="save the LoRA adapter alone, in peft format")
    _add_replay(command, form)


def _add_train(command: AddCommand, form: argparse.ArgumentParser) -> None:
    train = command("train", "train as configured in a TOML file, one line per step", form)
    train.add_argument("config", metavar="CONFIG", help="a TOML file; see docs/training.md")
    train.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field, such as seed=1; repeatable"
    )
    train.add_argument(
        "--verify-sync",
        type=int,
        metavar="N",
        help="every N steps, compare digests of all synced weights with those of their copies (verify_sync=N)",
    )
    train.add_argument("--trace", metavar="FILE", help=TRACE)
    resume = train.add_mutually_exclusive_group()
    resume.add_argument("--resume", action="store_true", help="continue from the last checkpoint of the run")
    resume.add_argument(
        "--auto-resume",
        dest="resume",
        action="store_const",
        const="auto",
        help="continue as --resume does, or start the run if its folder has none yet",
    )
    train.add_argument(
        "--accept",
        action="append",
        default=[],
        choices=["config", "data", "code", "versions"],
        help="when resuming: continue although these have changed; a field given with --set needs none; repeatable",
    )


def _add_replay(command: AddCommand, form: argparse.ArgumentParser) -> None:
    replay = command("replay", "replay one call of a recorded step in this process", form)
    replay.add_argument("run", metavar="RUN", help="the folder of a run, or of a recording")
    replay.add_argument("--step", type=int, metavar="N", help="which recorded step (default: the only one)")
    replay.add_argument("--node", metavar="CALL", help="such as actor.update#2; without it, the calls are listed")
    replay.add_argument(
        "--rank", type=int, metavar="R", help="which rank (default: the first that failed, or the first)"
    )
    replay.add_argument("--pdb", action="store_true", help="run it under the debugger, from the first line of the body")
    replay.add_argument(
        "--trust", action="store_true", help="load the recording's pickles, if any: they can run arbitrary code"
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None


def _count(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _seed(text: str) -> int:
    number = _whole(text)
    if not is_count(number, least=0):
        raise argparse.ArgumentTypeError(f"{in_digits(number)} is not {count_range(number, least=0)}")
    return number


def _share(text: str) -> float:
    share = _number(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return share


def _seconds(text: str) -> float:
    number = _number(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return number
