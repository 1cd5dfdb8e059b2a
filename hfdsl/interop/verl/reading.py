"""Configurations of verl's trainer: scripts that start it, YAML files, and folders that Hydra wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hfdsl.check.findings import Edit, Finding, Fix, Label
from hfdsl.graph.spans import Span
from hfdsl.interop.hydra import HydraArguments, Override, read_arguments
from hfdsl.interop.launches import Launch
from hfdsl.interop.library_tables import LibraryTable, table
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.settings import Configuration, Setting
from hfdsl.interop.shell_text import Items, text_of
from hfdsl.interop.shell_values import read_script, read_words
from hfdsl.interop.text import ReadError, SourceText, Unread, is_file, read_source
from hfdsl.interop.yaml_text import read_yaml

TRAINER = "verl.trainer.main_ppo"
OTHERS = ("verl.", "recipe.", "verl_")
MAX_SEARCHES = 50  # for a key that was meant; each goes through a thousand keys
CONFIG_NAMES = {"": "dp", "ppo_trainer": "dp", "ppo_megatron_trainer": "megatron"}
GROUPS = frozenset(
    [
        "actor",
        "algorithm",
        "critic",
        "data",
        "distillation",
        "engine",
        "model",
        "model_engine",
        "npu_profile",
        "optim",
        "profiler",
        "ref",
        "reward",
        "rollout",
        "transfer_queue",
    ]
)


def read(inputs: Inputs) -> list[RunReading]:
    """The runs of verl's trainer that a script, a YAML file or a folder describes.

    Raises:
        ReadError: HF970 where there is none that can be read.
    """
    path = Path(inputs.path)
    if is_file(path, folder=True):
        return [_from_folder(path, inputs)]
    source = read_source(path)
    if path.suffix in (".yaml", ".yml"):
        return [_from_yaml(source, inputs)]
    return from_script(source, inputs)


def from_script(source: SourceText, inputs: Inputs) -> list[RunReading]:
    """The runs that a script starts.

    Raises:
        ReadError: HF970 where it starts none.
    """
    script = read_script(source, inputs.arguments, inputs.environment)
    readings, others = list[RunReading](), list[tuple[str, Span]]()
    for launch in script.launches:
        start = trainer_arguments(launch.words)
        if start is None:
            texts = (text_of(word) or "" for word in launch.words)
            others += [(text, launch.span) for text in texts if text.startswith(OTHERS) and "=" not in text]
            continue
        arguments = read_arguments(launch.words[start:], _first_line(launch.span))
        reading = _composed(arguments, launch, inputs)
        unread = (*script.unread, *reading.unread)
        if not launch.certain:
            unread = (Unread("the script starts this command in a branch that may not run", launch.span), *unread)
        readings.append(replace(reading, unread=unread, assumed_unset=script.assumed_unset))
    if not readings:
        for program, span in others:
            raise ReadError(f"'{program}' is another program than {TRAINER}, which this reader knows", span)
        raise script.without_run(f"no {TRAINER}", (TRAINER, "trainer/main_ppo.py"))
    return readings


def trainer_arguments(words: Items) -> int | None:
    """Where the arguments of verl's trainer begin in a command."""
    for i, word in enumerate(words):
        text = text_of(word)
        if text is None:
            continue
        if text == TRAINER and i and text_of(words[i - 1]) == "-m":
            return i + 1
        if text.endswith("main_ppo.py") and (text == "main_ppo.py" or text.endswith("trainer/main_ppo.py")):
            return i + 1
    return None


def _first_line(span: Span) -> Span:
    return Span(span.file, span.line, span.column)


def _composed(arguments: HydraArguments, launch: Launch, inputs: Inputs) -> RunReading:
    """The configuration that Hydra makes of the overrides."""
    known = table("verl")
    engine, unread = "dp", list(arguments.unread)
    for flag, value in arguments.flags:
        if flag in ("--config-name", "-cn"):
            name = value.strip("'\"").removesuffix(".yaml")
            if name not in CONFIG_NAMES:
                raise ReadError(f"'{flag}={value}' is a configuration that this reader does not know", launch.span)
            engine = CONFIG_NAMES[name]
        elif flag in ("--config-path", "--config-dir", "-cp", "-cd") and not value.strip("'\"").endswith(
            "verl/trainer/config"
        ):
            unread.append(Unread(f"'{flag}={value}' may hold other defaults than verl's own", launch.span))
    return _applied(arguments, known, engine, _first_line(launch.span), tuple(unread))


@dataclass
class _Composition:
    """A configuration while overrides are applied to it, in order."""

    known: LibraryTable
    engine: str
    place: Span
    defaults: Mapping[str, Any] = field(default_factory=dict)
    explicit: dict[str, Setting] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unknown_below: dict[str, Unread] = field(default_factory=dict)

    def configuration(self, unread: Sequence[Unread] = ()) -> Configuration:
        return Configuration(
            library="verl",
            defaults=self.defaults,
            explicit=self.explicit,
            place=self.place,
            unread=tuple(unread),
            unknown_below=self.unknown_below,
        )

    # -- overrides

    def choose(self, override: Override) -> None:
        """``group=choice`` and ``group@package=choice``."""
        setting = override.setting
        group, at, package = setting.key.partition("@")
        where = package if at else group.replace("/", ".")
        if group.startswith("hydra"):
            return  # Hydra's own: where it logs
        if setting.unknown:
            everything = group == "model_engine" and not at
            self.unknown_below["" if everything else where] = Unread(
                f"'{setting.key}' is not known: {setting.unknown}", setting.span
            )
        elif group == "model_engine" and not at:
            if setting.value in self.known.engines:
                self.engine = str(setting.value)
            else:
                names = ", ".join(self.known.engines)
                self.findings.append(
                    Finding("HF972", f"model_engine = {setting.value} is none of {names}", Label(setting.span))
                )
        else:
            self.unknown_below[where] = Unread(f"'{setting.key}={setting.value}' brings keys of its own", setting.span)

    def apply(self, override: Override) -> None:
        setting, key = override.setting, override.setting.key
        if override.sign == "~":
            self.defaults = {k: v for k, v in self.defaults.items() if k != key and not k.startswith(f"{key}.")}
            self.explicit.pop(key, None)
            return
        is_known = self._is_known(key)
        if not override.sign and not is_known:
            self._unknown(setting)
        elif override.sign == "+" and is_known and not isinstance(setting.value, dict | list):
            if not setting.unknown and self._has_value(key):
                self.findings.append(self._already(setting))
        elif override.sign and not is_known:
            self._undeclared(setting)
        if isinstance(setting.value, dict) and any(k.startswith(f"{key}.") for k in self.defaults):
            for name, value in setting.value.items():
                self.apply(Override(override.sign, replace(setting, key=f"{key}.{name}", value=value, text=None)))
            return
        self.explicit[key] = setting

    def _is_known(self, key: str) -> bool:
        if key in self.defaults or any(k.startswith(f"{key}.") for k in self.defaults):
            return True
        above = key
        while above:
            if above in self.unknown_below or (above in self.explicit and above != key and self._is_open(above)):
                return True
            above = above.rpartition(".")[0]
        return "" in self.unknown_below or key in self.explicit

    def _is_open(self, key: str) -> bool:
        """Whether an earlier ``+`` has made the table, so that its keys are the user's own."""
        return key not in self.defaults

    def _has_value(self, key: str) -> bool:
        configuration = self.configuration()
        return any(k.startswith(f"{key}.") for k in self.defaults) or configuration.known(key) is not None

    def _unknown(self, setting: Setting) -> None:
        near = nearest_key(setting.key, self.defaults) if len(self.findings) < MAX_SEARCHES else None
        fixes = () if near is None else _renamed(setting, near)
        advice = (f"did you mean {near}?",) if near else (f"'+{setting.key}=...' adds a key",)
        self.findings.append(
            Finding(
                "HF971",
                f"verl {self.known.version} has no key '{setting.key}'",
                Label(setting.span, "Hydra refuses an override of a key that is not there"),
                notes=advice,
                fixes=fixes,
            )
        )

    def _already(self, setting: Setting) -> Finding:
        return Finding(
            "HF971",
            f"'+{setting.key}' adds a key that is already there",
            Label(setting.span, "Hydra refuses '+' for it"),
            notes=(f"write {setting.key}=... without '+'",),
            fixes=(Fix("leave out '+'", (Edit(_head(setting.span, 1), ""),)),) if _one_line(setting.span) else (),
        )

    def _undeclared(self, setting: Setting) -> None:
        """An added key of a table that becomes a dataclass, which takes its own fields only."""
        above, _, name = setting.key.rpartition(".")
        target = self.configuration().known(f"{above}._target_")
        names = self.known.fields.get(target) if isinstance(target, str) else None
        if names is None or name in names:
            return
        near = get_close_matches(name, names, n=1, cutoff=0.7)
        self.findings.append(
            Finding(
                "HF971",
                f"'{above}' is a {target.rpartition('.')[2]}, which has no field '{name}'",
                Label(setting.span, "verl refuses it when the workers start"),
                notes=(f"did you mean {above}.{near[0]}?",) if near else (),
            )
        )


def _applied(
    arguments: HydraArguments,
    known: LibraryTable,
    engine: str,
    place: Span,
    unread: Sequence[Unread],
    base: Sequence[Setting] = (),
) -> RunReading:
    composition = _Composition(known, engine, place)
    groups = [o for o in arguments.overrides if _is_group(o)]
    for override in groups:
        composition.choose(override)
    composition.defaults = known.engines[composition.engine]
    for setting in base:
        composition.explicit[setting.key] = setting
    for override in arguments.overrides:
        if override not in groups:
            composition.apply(override)
    for message, span in arguments.refused:
        composition.findings.append(Finding("HF972", message, Label(span)))
    return RunReading(composition.configuration(unread), tuple(composition.findings), tuple(unread))


def _is_group(override: Override) -> bool:
    key = override.setting.key
    return "@" in key or (key in GROUPS and not isinstance(override.setting.value, dict)) or key.startswith("hydra")


def nearest_key(key: str, keys: Mapping[str, Any]) -> str | None:
    """The key that somebody may have meant."""
    last = key.rpartition(".")[2]
    same = [k for k in keys if k.rpartition(".")[2] == last]
    near = get_close_matches(key, same, n=1, cutoff=0.5) or get_close_matches(key, keys, n=1, cutoff=0.85)
    return near[0] if near else None


def _renamed(setting: Setting, near: str) -> tuple[Fix, ...]:
    if not _one_line(setting.span):
        return ()
    return (Fix(f"write {near}", (Edit(_head(setting.span, len(setting.key.encode())), near),)),)


def _one_line(span: Span) -> bool:
    return span.end_line == span.line and not span.file.startswith("<")


def _head(span: Span, length: int) -> Span:
    return Span(span.file, span.line, span.column, span.line, span.column + length)


# -- YAML


def _from_yaml(source: SourceText, inputs: Inputs) -> RunReading:
    settings = read_yaml(source)
    known, unread = table("verl"), list[Unread]()
    engine, rest = "dp", list[Setting]()
    for setting in settings:
        if setting.key == "defaults" and isinstance(setting.value, list):
            engine = _defaults(setting, known, engine, unread)
        elif setting.key == "model_engine" and setting.value in known.engines:
            engine = str(setting.value)
        elif not setting.key.startswith(("hydra.", "defaults.")) and setting.key != "hydra":
            rest.append(setting)
    if not any(setting.key.startswith("actor_rollout_ref.") for setting in rest) and not any(
        s.key == "defaults" for s in settings
    ):
        raise ReadError(f"'{source.file}' configures no {TRAINER}: it has no 'actor_rollout_ref'", Span(source.file, 1))
    words = read_words(inputs.arguments) if inputs.arguments is not None else ()
    arguments = read_arguments(words, Span(source.file, 1))
    reading = _applied(arguments, known, engine, Span(source.file, 1), unread, rest)
    return replace(reading, findings=(*_unknown_in_file(rest, known, engine, reading), *reading.findings))


def _defaults(setting: Setting, known: LibraryTable, engine: str, unread: list[Unread]) -> str:
    """The engine that a ``defaults`` list chooses; other entries are not read."""
    for entry in setting.value:
        pairs = entry if isinstance(entry, dict) else {str(entry): None}
        for name, choice in pairs.items():
            if name in CONFIG_NAMES and choice is None:
                engine = CONFIG_NAMES[name]
            elif name.removeprefix("override ").strip() == "model_engine" and choice in known.engines:
                engine = str(choice)
            elif name != "_self_":
                unread.append(Unread(f"the entry '{name}' of 'defaults' is another file", setting.span))
    return engine


def _unknown_in_file(
    settings: Sequence[Setting], known: LibraryTable, engine: str, reading: RunReading
) -> Iterator[Finding]:
    """Keys of a file that this version of verl does not have: a typo, or another version."""
    defaults = known.engines[engine]
    open_tables = {key for key, value in defaults.items() if isinstance(value, dict)}
    tables, searches = {key.rpartition(".")[0] for key in defaults}, 0
    for setting in settings:
        above, _, name = setting.key.rpartition(".")
        if setting.key in defaults or any(f"{setting.key}.".startswith(f"{key}.") for key in open_tables):
            continue
        if above not in tables or any(k.startswith(f"{setting.key}.") for k in defaults):
            continue
        target = defaults.get(f"{above}._target_")
        names = known.fields.get(target) if isinstance(target, str) else None
        if names is not None and name in names:
            continue
        near = nearest_key(setting.key, defaults) if searches < MAX_SEARCHES else None
        searches += 1
        yield Finding(
            "HF973",
            f"verl {known.version} has no key '{setting.key}'",
            Label(setting.span, "nothing reads it" if names is None else "verl refuses it when the workers start"),
            notes=(f"did you mean {near}?",) if near else (),
            fixes=_renamed(replace(setting, key=name), near.rpartition(".")[2])
            if near and near.rpartition(".")[0] == above
            else (),
        )


def _from_folder(folder: Path, inputs: Inputs) -> RunReading:
    for name in (".hydra/config.yaml", "config.yaml", "ppo_trainer.yaml"):
        if is_file(folder / name):
            return _from_yaml(read_source(folder / name), inputs)
    files = sorted(folder.glob("*.yaml"))
    if len(files) == 1:
        return _from_yaml(read_source(files[0]), inputs)
    raise ReadError(f"'{folder}' has no .hydra/config.yaml, and not exactly one YAML file", Span(str(folder), 1))
