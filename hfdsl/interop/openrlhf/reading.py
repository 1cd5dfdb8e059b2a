"""Runs of OpenRLHF's trainer: scripts with ``python -m openrlhf.cli.train_ppo_ray`` and its options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hfdsl.check.findings import Edit, Finding, Fix, Label
from hfdsl.graph.spans import Span
from hfdsl.interop.launches import Launch
from hfdsl.interop.library_tables import table
from hfdsl.interop.options import read_options
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.script_runs import OtherProgram, runs_of_script
from hfdsl.interop.settings import Configuration, Setting, is_integer
from hfdsl.interop.shell_text import Items, text_of
from hfdsl.interop.text import ReadError, SourceText, Unread, read_source

TRAINER = "openrlhf.cli.train_ppo_ray"
OTHERS = ("openrlhf.cli.train_sft", "openrlhf.cli.train_dpo", "openrlhf.cli.train_rm", "openrlhf.cli.train_kto",
          "openrlhf.cli.train_ppo", "openrlhf.cli.train_kd", "openrlhf.cli.train_prm")  # fmt: skip
FLAT_OPTIONS = 5
"""As many unknown options without a dot are those of an older version, and no typos."""


def read(inputs: Inputs) -> list[RunReading]:
    """The runs of OpenRLHF's trainer that a script starts.

    Raises:
        ReadError: HF970 if there is none that can be read.
    """
    path = Path(inputs.path)
    if path.suffix in (".yaml", ".yml", ".json"):
        raise ReadError(f"'{path}' is not a shell script, and {TRAINER} takes its options on the command line only",
                        Span(str(path), 1))  # fmt: skip
    return from_script(read_source(path), inputs)


def from_script(source: SourceText, inputs: Inputs) -> list[RunReading]:
    """The runs that a script starts.

    Raises:
        ReadError: HF970 if it starts none.
    """
    return runs_of_script(
        source,
        inputs,
        _of_launch,
        trainer=f"no {TRAINER}",
        names=(TRAINER, "cli/train_ppo_ray.py"),
        refusal=f"the script starts {{}}, and this reader knows commands with {TRAINER}",
    )


def _of_launch(launch: Launch) -> RunReading | OtherProgram | None:
    start = trainer_arguments(launch.words)
    if start is not None:
        return from_options(launch.words[start:], launch.span)
    return next((OtherProgram(text) for word in launch.words if (text := text_of(word)) in OTHERS), None)


def trainer_arguments(words: Items) -> int | None:
    """Where the options of OpenRLHF's trainer begin in a command."""
    for i, word in enumerate(words):
        text = text_of(word)
        if text == TRAINER or (text or "").endswith("cli/train_ppo_ray.py"):
            return i + 1
    return None


def from_options(words: Items, span: Span) -> RunReading:
    """The run of a command with these options."""
    place, library = Span(span.file, span.line, span.column), table("openrlhf")
    options = read_options(words, place, dashes=False)
    explicit, findings, unknown = dict[str, Setting](), list[Finding](), list[Setting]()
    for setting in options.settings:
        key = _name(setting.key, library.options)
        if key is None:
            unknown.append(setting)
            continue
        explicit[key] = replace(setting, key=key)
        message = "" if setting.unknown else _refusal(explicit[key], library.options[key])
        if message:
            findings.append(Finding("HF972", message, Label(setting.span, "argparse refuses it")))
            explicit[key] = replace(explicit[key], unknown="its value is none that argparse takes")
    unread, below = list(options.unread), dict[str, Unread]()
    flat = [setting for setting in unknown if "." not in setting.key]
    if len(flat) >= FLAT_OPTIONS:
        findings.append(_older(flat, library.version, library.options))
        unknown = [setting for setting in unknown if "." in setting.key]
        below[""] = Unread("the command is one of an older version", flat[0].span)
        unread.append(Unread("values of options of an older version", flat[0].span))
    findings += [_unknown(setting, library.version, library.options) for setting in unknown]
    findings += [
        Finding("HF971", f"'{(text_of(word) or '?')[:40]}' belongs to no option", Label(place, "argparse refuses it"))
        for word in options.positional
    ]
    configuration = Configuration(
        library="openrlhf",
        defaults=library.engines[library.default],
        explicit=explicit,
        place=place,
        unread=tuple(unread),
        unknown_below=below,
    )
    return RunReading(configuration, tuple(findings), tuple(unread))


def _name(key: str, options: Mapping[str, Any]) -> str | None:
    """The option that a name means: argparse takes a beginning that only one option has."""
    if key in options:
        return key
    longer = [name for name in options if name.startswith(key)]
    return longer[0] if len(longer) == 1 else None


def _refusal(setting: Setting, option: Mapping[str, Any]) -> str:
    """Why argparse refuses a value; empty if it takes it."""
    name, value, kind = f"--{setting.key}", setting.value, option["type"]
    has_value = setting.value_span != setting.span
    if kind == "switch":
        return f"{name} is a switch and takes no value: leave out '{_value_text(value)}'" if has_value else ""
    if not has_value:
        return f"{name} needs a value" if option.get("values") != "*" else ""
    values = value if isinstance(value, list) else [value]
    wanted = option.get("values", 1)
    if wanted != "*" and len(values) != wanted:
        number = "one value" if wanted == 1 else f"{wanted} values"
        return f"{name} takes {number}, not {len(values)}: {_value_text(value)}"
    for item in values:
        if kind == "int" and not is_integer(item):
            return f"{name} = {item} is not an integer"
        if kind == "float" and (not isinstance(item, int | float) or isinstance(item, bool)):
            return f"{name} = {item} is not a number"
        if "choices" in option and str(item) not in option["choices"]:
            near = get_close_matches(str(item), option["choices"], n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"{name} = {item} is not one of {', '.join(option['choices'])}{hint}"
    return ""


def _value_text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def nearest(key: str, options: Mapping[str, Any]) -> str | None:
    """The option that may have been meant: the same words in another order or with fewer of them, or a near one.

    >>> nearest("micro_train_batch_size", {"train.micro_batch_size": {}, "train.batch_size": {}})
    'train.micro_batch_size'
    """
    words = set(re.split(r"[._-]", key))
    same = [name for name in options if set(re.split(r"[._]", name)) == words]
    longer = [name for name in options if words < set(re.split(r"[._]", name))] if len(words) > 1 else []
    if same or len(longer) == 1:
        return (same or longer)[0]
    close = get_close_matches(key, options, n=1, cutoff=0.8)
    return close[0] if close else None


def _unknown(setting: Setting, version: str, options: Mapping[str, Any]) -> Finding:
    near, fixes = nearest(setting.key, options), tuple[Fix, ...]()
    span = setting.span
    if near and span.line == span.end_line and not span.file.startswith("<"):
        start = span.column + 2
        head = replace(span, column=start, end_column=start + len(setting.key.encode()))
        fixes = (Fix(f"write --{near}", (Edit(head, near),)),)
    return Finding(
        "HF971",
        f"OpenRLHF {version} has no option '--{setting.key}'",
        Label(span, "argparse refuses it"),
        notes=(f"did you mean --{near}?",) if near else (),
        fixes=fixes,
    )


def _older(flat: Sequence[Setting], version: str, options: Mapping[str, Any]) -> Finding:
    """The options of a command that was written for names without dots."""
    renamed = [(setting.key, near) for setting in flat if (near := nearest(setting.key, options))]
    return Finding(
        "HF971",
        f"OpenRLHF {version} has none of {len(flat)} options of this command, such as '--{flat[0].key}'",
        Label(flat[0].span, "names without a dot are those of an older version"),
        notes=tuple(f"--{old} may be --{new} now" for old, new in renamed[:8]),
    )
