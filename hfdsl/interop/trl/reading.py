"""Configurations of TRL's online trainers: commands such as ``trl grpo`` and ``accelerate launch``, and YAML files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from hfdsl.check.findings import Edit, Finding, Fix, Label
from hfdsl.graph.spans import Span
from hfdsl.interop.launches import Launch
from hfdsl.interop.library_tables import LibraryTable, table
from hfdsl.interop.options import read_options
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.script_runs import OtherProgram, runs_of_script
from hfdsl.interop.settings import Configuration, Setting, is_integer
from hfdsl.interop.shell_text import Items, WordText, text_of
from hfdsl.interop.shell_values import read_words
from hfdsl.interop.text import ReadError, SourceText, Unread, is_file, read_source
from hfdsl.interop.trl.arguments import RefusedError, parsed
from hfdsl.interop.trl.units import PROCESSES
from hfdsl.interop.yaml_text import read_yaml

OTHER_TRAINERS = ("sft", "dpo", "kto", "reward", "distillation")
FORMER = ("max_prompt_length", "evaluation_strategy", "warmup_ratio", "use_liger_loss", "vllm_device", "vllm_dtype",
          "vllm_max_model_len", "vllm_guided_decoding_regex", "wandb_log_unique_prompts")  # fmt: skip
"""Arguments of earlier versions."""

PROGRAMS = ("trl grpo", "trl rloo", "trl.scripts.grpo", "trl.scripts.rloo", "trl/scripts/grpo.py",
            "trl/scripts/rloo.py")  # fmt: skip
"""How a text names a training program."""


def read(inputs: Inputs) -> list[RunReading]:
    """The runs of TRL's GRPO and RLOO trainers that a script or a YAML file describes.

    Raises:
        ReadError: HF970 if there is none that can be read.
    """
    source = read_source(inputs.path)
    if Path(inputs.path).suffix in (".yaml", ".yml"):
        return [_from_yaml(source, inputs)]
    return from_script(source, inputs)


def from_script(source: SourceText, inputs: Inputs) -> list[RunReading]:
    """The runs that a script starts.

    Raises:
        ReadError: HF970 if it starts none.
    """
    return runs_of_script(
        source,
        inputs,
        partial(_of_launch, source),
        trainer="no online trainer of TRL (trl grpo, trl rloo)",
        names=PROGRAMS,
        refusal="'{}' is not a GRPO or RLOO trainer: this reader knows trl grpo and trl rloo",
    )


def _of_launch(script: SourceText, launch: Launch) -> RunReading | OtherProgram | None:
    program = _program(launch)
    if program is None:
        return None
    if program.trainer not in table("trl").engines:
        return OtherProgram(program.name)
    return _from_command(program, launch, script)


@dataclass(frozen=True, slots=True)
class _Program:
    """A training program in a command: its trainer, and whether it is TRL's own script, whose defaults are known."""

    name: str
    trainer: str
    own: bool
    launcher: Items
    arguments: Items


def _program(launch: Launch) -> _Program | None:
    """The training program of a command; None if it starts none."""
    texts = [text_of(word) or "" for word in launch.words]
    for i, text in enumerate(texts):
        name, before, after = Path(text).name, launch.words[:i], launch.words[i + 1 :]
        if name == "trl" and i + 1 < len(texts) and texts[i + 1] in (*table("trl").engines, *OTHER_TRAINERS):
            return _Program(f"trl {texts[i + 1]}", texts[i + 1], own=True, launcher=(), arguments=after[1:])
        if text.startswith("trl.scripts.") and i and texts[i - 1] == "-m":
            return _Program(text, text.rpartition(".")[2], own=True, launcher=before[:-1], arguments=after)
        if name.endswith(".py") and "=" not in text and i:
            own = text.endswith(("trl/scripts/grpo.py", "trl/scripts/rloo.py"))
            trainer = next((t for t in table("trl").engines if t in name.lower()), "")
            if not trainer and any(word.split("=")[0] == "--num_generations" for word in texts[i + 1 :]):
                trainer = "grpo"
            return _Program(name, trainer, own=own, launcher=before, arguments=after)
    return None


@dataclass
class _Settings:
    """Settings while they are gathered: a later one takes the place of an earlier one."""

    known: LibraryTable
    trainer: str
    own: bool
    explicit: dict[str, Setting] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    foreign: list[Setting] = field(default_factory=list)

    @property
    def keys(self) -> Mapping[str, Any]:
        return self.known.engines[self.trainer]

    def add(self, setting: Setting, *, certain: bool) -> None:
        """Add an argument; ``certain`` says that an unknown one is refused."""
        key, switched_off = setting.key, False
        if key not in self.keys and key.startswith("no_") and key[3:] in self.keys:
            key, switched_off = key[3:], True
        if key not in self.keys:
            longer = [name for name in self.keys if name.startswith(key)]
            if len(longer) == 1 and not setting.span.file.endswith((".yaml", ".yml")):
                key = longer[0]  # argparse takes a beginning that only one option has
        if key in self.keys or key == PROCESSES:
            self.explicit[key] = self._parsed(replace(setting, key=key, value=False if switched_off else setting.value))
        elif key not in self.known.fields["accelerate launch"] and key not in ("accelerate_config", "env", "config"):
            self._unknown(setting, certain=certain)

    def _parsed(self, setting: Setting) -> Setting:
        """A setting with its value from TRL's parser; a user's own script may use another parser."""
        option = self.known.options.get(setting.key)
        if not self.own or option is None or setting.unknown:
            return setting
        try:
            in_file = setting.span.file.endswith((".yaml", ".yml"))
            return replace(setting, value=parsed(setting.key, setting.value, option, in_file=in_file))
        except RefusedError as error:
            self.findings.append(Finding("HF972", str(error), Label(setting.span, "TRL's parser refuses it")))
            return replace(setting, unknown="its value is none that TRL takes")

    def _unknown(self, setting: Setting, *, certain: bool) -> None:
        near = get_close_matches(setting.key, self.keys, n=1, cutoff=0.8) if setting.key not in FORMER else []
        if not certain and not near and setting.key not in FORMER:
            self.foreign.append(setting)
            return
        certain = certain or self.own
        label = "TRL refuses it" if certain else "a script of your own may read it"
        advice, fixes = (f"did you mean {near[0]}?",) if near else (), tuple[Fix, ...]()
        if near and setting.span.line == setting.span.end_line and not setting.span.file.startswith("<"):
            start = setting.span.column + (0 if setting.span.file.endswith((".yaml", ".yml")) else 2)
            end = start + len(setting.key.encode())
            fixes = (Fix(f"write {near[0]}", (Edit(replace(setting.span, column=start, end_column=end), near[0]),)),)
        self.findings.append(
            Finding(
                "HF971" if certain else "HF973",
                f"TRL {self.known.version} has no argument '{setting.key}'",
                Label(setting.span, label),
                notes=advice,
                fixes=fixes,
            )
        )

    def reading(self, place: Span, program: str) -> RunReading:
        if self.foreign:
            names = ", ".join(setting.key for setting in self.foreign[:6])
            self.unread.append(Unread(f"arguments that TRL does not have: {names}", self.foreign[0].span))
        below = {} if self.own else {"": Unread(f"'{program}' may set it", place)}
        configuration = Configuration(
            library="trl",
            defaults=self.keys,
            explicit=self.explicit,
            place=place,
            unread=tuple(self.unread),
            unknown_below=below,
        )
        return RunReading(configuration, tuple(self.findings), tuple(self.unread))


def _from_command(program: _Program, launch: Launch, source: SourceText) -> RunReading:
    place = Span(launch.span.file, launch.span.line, launch.span.column)
    settings = _Settings(table("trl"), program.trainer, program.own)
    _add_processes(settings, read_options(program.launcher, place).settings, source)
    options = read_options(program.arguments, place)
    for setting in options.settings:
        if setting.key == "config" and isinstance(setting.value, str):
            in_file = list(_file(setting, source, settings.unread))
            for leaf in in_file:
                settings.add(_whole(leaf, in_file), certain=program.name.startswith("trl "))
    _add_processes(settings, options.settings, source)
    for setting in options.settings:
        settings.add(setting, certain=program.own)
    settings.unread += options.unread
    _add_positional(settings, options.positional, place)
    return settings.reading(place, program.name)


def _add_positional(settings: _Settings, words: Sequence[WordText], place: Span) -> None:
    for word in words:
        if (text := text_of(word)) and "=" in text:
            settings.unread.append(Unread(f"'{text[:40]}' is not an option", place))


def _add_processes(settings: _Settings, options: Iterable[Setting], source: SourceText) -> None:
    """The number of processes that a launcher starts, if it states it."""
    by_name = {setting.key: setting for setting in options}
    for name in ("config_file", "accelerate_config"):
        if name in by_name and isinstance(by_name[name].value, str):
            for setting in _file(by_name[name], source, settings.unread):
                if setting.key == PROCESSES:
                    settings.explicit[PROCESSES] = setting
    per_node, nodes = by_name.get("nproc_per_node"), by_name.get("nnodes")
    if per_node is not None and is_integer(per_node.value) and (nodes is None or is_integer(nodes.value)):
        count = per_node.value * (1 if nodes is None else nodes.value)
        settings.explicit[PROCESSES] = replace(
            per_node, key=PROCESSES, value=count, text=per_node.text if nodes is None else None
        )
    if PROCESSES in by_name:
        settings.explicit[PROCESSES] = by_name[PROCESSES]


def _file(setting: Setting, source: SourceText, unread: list[Unread]) -> Iterator[Setting]:
    """The settings of a file that an argument names, below the script's folder or the current one."""
    name = Path(str(setting.value))
    for folder in (Path(source.file).parent, Path()):
        if is_file(folder / name):
            yield from read_yaml(read_source(folder / name))
            return
    unread.append(Unread(f"'{setting.value}' is not there to be read", setting.span))


def _from_yaml(source: SourceText, inputs: Inputs) -> RunReading:
    place = Span(source.file, 1)
    in_file = list(read_yaml(source))
    words = read_words(inputs.arguments) if inputs.arguments is not None else ()
    trainer = next((name for word in words[:1] for name in table("trl").engines if text_of(word) == name), "")
    options = read_options(words[1:] if trainer else words, place)
    names = {setting.key.partition(".")[0] for setting in (*in_file, *options.settings)}
    online = ("num_generations", "max_completion_length", "steps_per_generation", "num_iterations", "reward_funcs")
    if not trainer and names.isdisjoint(online):
        raise ReadError(
            f"'{source.file}' configures no GRPO or RLOO trainer: it has none of {', '.join(online)}; behind --, name "
            "the trainer: -- grpo",
            place,
        )
    settings = _Settings(table("trl"), trainer or "grpo", own=True)
    for setting in in_file:
        settings.add(_whole(setting, in_file), certain=False)
    _add_processes(settings, [*in_file, *options.settings], source)
    for setting in options.settings:
        settings.add(setting, certain=False)
    settings.unread += options.unread
    return settings.reading(place, "")


def _whole(setting: Setting, settings: Sequence[Setting]) -> Setting:
    """A leaf of a table that is one argument, such as ``model_init_kwargs``, as that argument."""
    head = setting.key.partition(".")[0]
    if head == setting.key:
        return setting
    inner = {leaf.key[len(head) + 1 :]: leaf.value for leaf in settings if leaf.key.startswith(f"{head}.")}
    return replace(setting, key=head, value=inner, text=None)
