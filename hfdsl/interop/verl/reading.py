"""Configurations of verl's trainer: scripts that start it, YAML files, and folders that Hydra wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hfdsl.check.findings import Finding, Label
from hfdsl.graph.spans import Span
from hfdsl.interop.hydra import CONFIG_NAME, CONFIG_PATH, HydraArguments, read_arguments
from hfdsl.interop.launches import Launch
from hfdsl.interop.library_tables import LibraryTable, table
from hfdsl.interop.misspelled_keys import nearest_key, renamed
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.script_runs import OtherProgram, runs_of_script
from hfdsl.interop.settings import Setting
from hfdsl.interop.shell_text import Items, text_of
from hfdsl.interop.shell_values import read_words
from hfdsl.interop.text import ReadError, SourceText, Unread, is_file, read_source
from hfdsl.interop.verl.composition import MAX_SEARCHES, applied
from hfdsl.interop.yaml_text import read_yaml

TRAINER = "verl.trainer.main_ppo"
OTHERS = ("verl.", "recipe.", "verl_")
MAX_PARENTS = 6  # folders above a script in which its configuration is looked for
CONFIG_NAMES = {"": "dp", "ppo_trainer": "dp", "ppo_megatron_trainer": "megatron"}


def read(inputs: Inputs) -> list[RunReading]:
    """The runs of verl's trainer that a script, a YAML file or a folder describes.

    Raises:
        ReadError: HF970 if there is none that can be read.
    """
    path = Path(inputs.path)
    if is_file(path, folder=True):
        return [_from_folder(path, inputs)]
    source = read_source(path)
    if path.suffix in (".yaml", ".yml"):
        return [_behind_file(source, inputs)]
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
        trainer=f"no {TRAINER}",
        names=(TRAINER, "trainer/main_ppo.py"),
        refusal=f"'{{}}' is another program than {TRAINER}, which this reader knows",
    )


def _of_launch(script: SourceText, launch: Launch) -> RunReading | OtherProgram | None:
    start = trainer_arguments(launch.words)
    if start is not None:
        return _composed(read_arguments(launch.words[start:], _first_line(launch.span)), launch, script)
    texts = (text_of(word) or "" for word in launch.words)
    return next((OtherProgram(text) for text in texts if text.startswith(OTHERS) and "=" not in text), None)


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


def _composed(arguments: HydraArguments, launch: Launch, script: SourceText) -> RunReading:
    """The configuration that Hydra makes of the overrides, with verl's own file or one beside the script."""
    flags = dict(arguments.flags)
    name = next((flags[flag] for flag in CONFIG_NAME if flag in flags), "").removesuffix(".yaml")
    folder = next((flags[flag] for flag in CONFIG_PATH if flag in flags), None)
    place, unread = _first_line(launch.span), list(arguments.unread)
    if name not in CONFIG_NAMES:
        file = _file_of(name, folder or "", Path(script.file))
        if file is None:
            raise ReadError(f"'{name}.yaml', which --config-name names, is not beside the script: check that file with "
                            "the overrides behind --", launch.span)  # fmt: skip
        unread.append(Unread(f"--config-name={name} is taken to be '{file}'", launch.span))
        return _from_yaml(read_source(file), arguments, place, unread)
    if folder is not None and not folder.endswith("verl/trainer/config"):
        unread.append(Unread(f"'--config-path={folder}' may hold other defaults than verl's own", launch.span))
    return applied(arguments, table("verl"), CONFIG_NAMES[name], place, tuple(unread))


def _file_of(name: str, folder: str, script: Path) -> Path | None:
    """The file of a configuration, in the folder of ``--config-path`` or beside the script."""
    bases = (Path(), *script.parents[:MAX_PARENTS])
    files = [base / inside / f"{name}.yaml" for base in bases for inside in (folder, "config", "")]
    return next((file for file in files if is_file(file)), None)


def _behind_file(source: SourceText, inputs: Inputs) -> RunReading:
    """The run of a file with the overrides behind ``--``."""
    words = read_words(inputs.arguments) if inputs.arguments is not None else ()
    place = Span(source.file, 1)
    return _from_yaml(source, read_arguments(words, place), place, [])


def _from_yaml(source: SourceText, arguments: HydraArguments, place: Span, unread: list[Unread]) -> RunReading:
    settings = read_yaml(source)
    library = table("verl")
    engine, own_settings = "dp", list[Setting]()
    for setting in settings:
        if setting.key == "defaults" and isinstance(setting.value, list):
            engine = _defaults(setting, library, engine, unread)
        elif setting.key == "model_engine" and setting.value in library.engines:
            engine = str(setting.value)
        elif not setting.key.startswith(("hydra.", "defaults.")) and setting.key != "hydra":
            own_settings.append(setting)
    if not any(setting.key.startswith("actor_rollout_ref.") for setting in own_settings) and not any(
        s.key == "defaults" for s in settings
    ):
        raise ReadError(f"'{source.file}' configures no {TRAINER}: it has no 'actor_rollout_ref'", Span(source.file, 1))
    reading = applied(arguments, library, engine, place, unread, own_settings)
    return replace(reading, findings=(*_unknown_in_file(own_settings, library, engine), *reading.findings))


def _defaults(setting: Setting, library: LibraryTable, engine: str, unread: list[Unread]) -> str:
    """The engine that a ``defaults`` list chooses; other entries are not read."""
    for entry in setting.value:
        pairs = entry if isinstance(entry, dict) else {str(entry): None}
        for name, choice in pairs.items():
            if name in CONFIG_NAMES and choice is None:
                engine = CONFIG_NAMES[name]
            elif name.removeprefix("override ").strip() == "model_engine" and choice in library.engines:
                engine = str(choice)
            elif name != "_self_":
                unread.append(Unread(f"the entry '{name}' of 'defaults' is another file", setting.span))
    return engine


def _unknown_in_file(settings: Sequence[Setting], library: LibraryTable, engine: str) -> Iterator[Finding]:
    """Keys of a file that this version of verl does not have: a typo, or another version."""
    defaults = library.engines[engine]
    open_tables = {key for key, value in defaults.items() if isinstance(value, dict)}
    tables, searches = {key.rpartition(".")[0] for key in defaults}, 0
    for setting in settings:
        above, _, name = setting.key.rpartition(".")
        if setting.key in defaults or any(f"{setting.key}.".startswith(f"{key}.") for key in open_tables):
            continue
        if above not in tables or any(k.startswith(f"{setting.key}.") for k in defaults):
            continue
        target = defaults.get(f"{above}._target_")
        names = library.fields.get(target) if isinstance(target, str) else None
        if names is not None and name in names:
            continue
        near = nearest_key(setting.key, defaults) if searches < MAX_SEARCHES else None
        searches += 1
        yield Finding(
            "HF973",
            f"verl {library.version} has no key '{setting.key}'",
            Label(setting.span, "nothing reads it" if names is None else "verl refuses it when the workers start"),
            notes=(f"did you mean {near}?",) if near else (),
            fixes=renamed(replace(setting, key=name), near.rpartition(".")[2])
            if near and near.rpartition(".")[0] == above
            else (),
        )


def _from_folder(folder: Path, inputs: Inputs) -> RunReading:
    for name in (".hydra/config.yaml", "config.yaml", "ppo_trainer.yaml"):
        if is_file(folder / name):
            return _behind_file(read_source(folder / name), inputs)
    files = sorted(folder.glob("*.yaml"))
    if len(files) == 1:
        return _behind_file(read_source(files[0]), inputs)
    raise ReadError(f"'{folder}' has no .hydra/config.yaml, and not exactly one YAML file", Span(str(folder), 1))
