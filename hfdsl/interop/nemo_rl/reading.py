"""Runs of NeMo-RL's GRPO: YAML files with their ancestors, and scripts with ``run_grpo.py`` and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hfdsl.graph.spans import Span
from hfdsl.interop.hydra import read_arguments
from hfdsl.interop.library_tables import table
from hfdsl.interop.nemo_rl.composition import RESOLVERS, Composition
from hfdsl.interop.nemo_rl.schema import refusals
from hfdsl.interop.nemo_rl.units import IGNORE_ACCURACY
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.settings import Configuration, Setting
from hfdsl.interop.shell_text import Items, TextPiece, WordText, holes, text_of
from hfdsl.interop.text import ReadError, SourceText, Unread, is_file, read_source

if TYPE_CHECKING:
    from hfdsl.interop.launches import Launch

PROGRAMS = ("run_grpo.py", "run_vlm_grpo.py", "run_grpo_nemo_gym.py", "run_grpo_sliding_puzzle.py", "run_grpo_math.py")
OTHER_PROGRAMS = ("run_sft.py", "run_dpo.py", "run_rm.py", "run_ppo.py", "run_distillation.py", "run_eval.py",
                  "run_vlm_sft.py", "run_xtoken_off_policy_distillation.py")  # fmt: skip
OTHER_ALGORITHMS = ("ppo", "sft", "dpo", "rm", "distillation", "eval", "generation", "xtoken")
DEFAULT = "grpo_math_1B"
"""The configuration that ``run_grpo.py`` has without ``--config``."""


def read(inputs: Inputs) -> list[RunReading]:
    """The runs of GRPO that a YAML file or a script describes.

    Raises:
        ReadError: HF970 if there is none that can be read.
    """
    path = Path(inputs.path)
    if path.suffix in (".yaml", ".yml"):
        words: Items = ()
        if inputs.arguments is not None:
            from hfdsl.interop.shell_values import read_words  # late: a file needs no reader of shells

            words = read_words(inputs.arguments)
        return [_in(inputs.environment or {}, _composed(path, words, Span(str(path), 1)))]
    return from_script(read_source(path), inputs)


def from_script(source: SourceText, inputs: Inputs) -> list[RunReading]:
    """The runs that a script starts.

    Raises:
        ReadError: HF970 if it starts none.
    """
    from hfdsl.interop.script_runs import OtherProgram, runs_of_script  # late, as in read

    def of_launch(launch: Launch) -> RunReading | OtherProgram | None:
        names = [(text_of(word) or "").rpartition("/")[2] for word in launch.words]
        start = next((i + 1 for i, name in enumerate(names) if name in PROGRAMS), None)
        if start is not None:
            return _in(launch.variables, _from_launch(launch, launch.words[start:], source))
        return next((OtherProgram(name) for name in names if name in OTHER_PROGRAMS), None)

    return runs_of_script(
        source,
        inputs,
        of_launch,
        trainer=f"none of {', '.join(PROGRAMS)}",
        names=PROGRAMS,
        refusal="the script starts {}, and this reader knows NeMo-RL's GRPO",
    )


def _in(environment: Mapping[str, str], reading: RunReading) -> RunReading:
    """A run with the variable of its environment that NeMo-RL's checks read."""
    value = environment.get(IGNORE_ACCURACY)
    if value is None:
        return reading
    configuration = reading.configuration
    setting = Setting(IGNORE_ACCURACY, value, configuration.place)
    return replace(
        reading, configuration=replace(configuration, explicit={**configuration.explicit, setting.key: setting})
    )


def _from_launch(launch: Launch, words: Items, source: SourceText) -> RunReading:
    place, overrides = Span(launch.span.file, launch.span.line, launch.span.column), list[WordText]()
    config: WordText | None = None
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        text = text_of(word)
        before = next((piece.text for piece in word if isinstance(piece, TextPiece)), "")
        if text == "--config" and remaining:
            config = remaining.pop(0)
        elif before.startswith("--config="):
            config = word
        elif not (text or "").startswith((">", "2>", "|")):
            overrides.append(word)
    if config is None:
        return _composed(None, tuple(overrides), place)
    name = text_of(config)
    if name is None:
        return _composed(None, tuple(overrides), place, f"the file of --config is not known: {holes(config)}")
    name = name.removeprefix("--config=")
    folder = Path(source.file).parent
    file = next((base / name for base in (Path(), folder, *folder.parents) if is_file(base / name)), None)
    if file is None and Path(name).stem in table("nemo-rl").engines:
        reading = _composed(None, tuple(overrides), place, name=Path(name).stem)
        assumption = Unread(f"'{name}' is not there, and taken as that of NeMo-RL {table('nemo-rl').version}", place)
        return replace(reading, unread=(assumption, *reading.unread))
    if file is None:
        return _composed(None, tuple(overrides), place, f"'{name}' is not there to be read")
    return _composed(file, tuple(overrides), place)


def _composed(path: Path | None, words: Items, place: Span, unknown: str = "", *, name: str = DEFAULT) -> RunReading:
    """The configuration of a file with overrides; the library's own if there is no file."""
    composition = Composition(table("nemo-rl"))
    if path is not None:
        composition.add_file(path)
        _demand_grpo(composition, path)
    elif unknown:
        composition.unknown_below[""] = Unread(unknown, place)
        composition.unread.append(composition.unknown_below[""])
    else:
        composition.add_library_file(name)
    composition.override(read_arguments(words, place))
    composition.findings += composition.misspelled()
    configuration = Configuration(
        library="nemo-rl",
        defaults=composition.defaults,
        explicit=composition.explicit,
        place=place,
        unread=tuple(composition.unread),
        unknown_below=composition.unknown_below,
        resolvers=RESOLVERS,
    )
    findings = (*composition.findings, *refusals(configuration))
    return RunReading(configuration, findings, tuple(composition.unread))


def _demand_grpo(composition: Composition, path: Path) -> None:
    """Refuse a file of another algorithm."""
    if composition.exists("grpo"):
        return
    algorithm = next((name for name in OTHER_ALGORITHMS if composition.exists(name)), None)
    if algorithm is not None:
        spans = [setting.span for key, setting in composition.explicit.items() if key.startswith(f"{algorithm}.")]
        place = min(spans, key=lambda span: (span.file != str(path), span.line), default=Span(str(path), 1))
        raise ReadError(f"'{path}' configures '{algorithm}', and this reader knows NeMo-RL's GRPO", place)
    if "" not in composition.unknown_below:
        raise ReadError(f"'{path}' configures no GRPO of NeMo-RL: it has no 'grpo'", Span(str(path), 1))
