"""``hfdsl train``, ``schema``, ``diff`` and ``export``: runs that a file configures, also as targets."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfdsl.deploy.cluster import Cluster
from hfdsl.errors import ConfigError, HfError, HfWarning
from hfdsl.rl.training.algorithms import READY
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.config_names import read_names
from hfdsl.rl.training.experiments import Experiments
from hfdsl.rl.training.placement import DeploymentConfig
from hfdsl.rl.training.toml.tables import differences, flattened, read_toml, to_toml
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.importing import TargetSource, UsageError, attribute_of, parts_of, source_of
from hfdsl.tools.output import FINDINGS, INTERRUPTED, OK, machine, say, show_json, show_report, show_start, stdout
from hfdsl.tools.progress import ProgressBar, shows_progress
from hfdsl.tools.rounds import RoundsAndUpdate
from hfdsl.tools.stepping import check_writable
from hfdsl.types.similar_names import closest

if TYPE_CHECKING:
    from hfdsl.rl.training.loop import Ended


class Finder:
    """Finds what a configuration names, in files too, and remembers from which modules."""

    def __init__(self) -> None:
        self.sources: list[TargetSource] = []

    def __call__(self, text: str) -> Any:
        """Load the object that ``"file.py:name"`` or ``"package.module:name"`` names.

        Raises:
            ConfigError: HF901 if it is not there.
        """
        place, attribute = parts_of(text)
        if not attribute:
            raise ConfigError("HF901", f"'{text}' is read as 'file.py:name' or 'package.module:name'")
        try:
            source = source_of(place)
            self.sources.append(source)
            return attribute_of(source.module, attribute, place)[1]
        except UsageError as error:
            raise ConfigError("HF901", str(error)) from None


def configured(text: str, changes: Sequence[str], cluster: Cluster | None) -> CommandTarget:
    """A configuration as a target.

    Raises:
        ConfigError: HF901 for a file or a change that does not fit the configuration.
    """
    finder = Finder()
    loaded = ConfigCheck(cluster).load(text, changes, finder)
    return target_of(text, loaded, finder.sources[0], cluster)


def target_of(text: str, loaded: Loaded, source: TargetSource, cluster: Cluster | None = None) -> CommandTarget:
    """The target of a configuration whose dataflow is in a source; errors as for ``Loaded.experiment``."""
    experiments = Experiments.of(loaded, cluster)
    run, *beside = (
        CommandTarget(
            text=text,
            source=source,
            dataflow=experiment.dataflow,
            experiment=experiment,
            dims=experiment.dims,
            cluster=cluster,
            loaded=loaded,
        )
        for experiment in experiments
    )
    rounds = None
    if experiments.update and loaded.config.update:
        rounds = RoundsAndUpdate(loaded, experiments.run, experiments.update, loaded.config.update)
    return replace(run, beside=tuple(beside), rounds=rounds)


def train(arguments: argparse.Namespace) -> int:
    """Train as a file configures.

    Raises:
        HfError: whatever is wrong with configuration, data, checkpoints and steps.
        UsageError: if the trace cannot be written.
    """
    from hfdsl.rl.training.loop import train as run
    from hfdsl.rl.training.metrics import Record, line
    from hfdsl.rl.training.run_folder import checkpoints
    from hfdsl.rl.training.run_folder.resuming import has_run, with_saved_engines

    finder = Finder()
    if arguments.verify_sync is not None:
        arguments.set = [*arguments.set, f"verify_sync={arguments.verify_sync}"]
    loaded = with_saved_engines(ConfigCheck().load(arguments.config, arguments.set, finder))
    if not _is_clean(loaded, arguments):
        return FINDINGS
    check_writable(arguments.trace)
    steps: list[int] = []
    bar = ProgressBar(loaded.config.steps, stdout()) if shows_progress(stdout()) and not machine(arguments) else None

    def show(record: Record) -> None:
        steps.append(record.step)
        if bar is not None:
            bar.show(record)
        elif machine(arguments):
            show_json({"step": record.step, **record.values, "seconds": record.seconds, "nodes": dict(record.nodes)})
        else:
            say(line(record))

    for source in finder.sources:
        _by_value(source, loaded)
    output = Path(loaded.config.output)
    if arguments.resume == "auto" and not has_run(output):
        say(f"there is no run in '{output}' yet: it starts at step 0", file=sys.stderr)
    show_start(loaded.deployment(), loaded.config.backend, arguments)
    try:
        with bar or nullcontext(), _warnings_on_stderr(bar):
            ended = run(
                loaded,
                resume=arguments.resume,
                accept=(*arguments.accept, *_fields_set(arguments, loaded)),
                show=show,
                worker_env=_environment(finder.sources),
                trace=arguments.trace,
            )
    except BaseException as error:
        if hint := _resume_hint(checkpoints.complete(output / "checkpoints"), error):
            say(hint, file=sys.stderr)
        raise
    return _exit_code(ended, any_step=bool(steps))


def _is_clean(loaded: Loaded, arguments: argparse.Namespace) -> bool:
    """Whether the check finds no error; it is shown, before the configuration with every default."""
    reports = ConfigCheck().reports(loaded)
    if not machine(arguments) or not all(reports):
        for report in reports:
            show_report(report, arguments, sys.stderr if report.findings and not machine(arguments) else None)
    if all(reports) and not machine(arguments):
        say(f"\n{to_toml(loaded.table())}")
    return all(reports)


def _exit_code(ended: Ended, *, any_step: bool) -> int:
    """The exit code of an ended run; one that was stopped, or had no step left, is also described on stderr."""
    if ended.stopped:
        say(f"stopped after step {ended.step}; --resume continues it", file=sys.stderr)
        return INTERRUPTED
    if not any_step:
        say(f"step {ended.step} was the last one; --set steps=N with more steps continues it", file=sys.stderr)
    return OK


def _fields_set(arguments: argparse.Namespace, loaded: Loaded) -> list[str]:
    """The fields that are another with ``--set`` than without; those that refer to a changed one are among them."""
    named = [change.partition("=")[0].strip() for change in arguments.set]
    try:
        unchanged = ConfigCheck().load(arguments.config, (), Finder()).table() if named else {}
    except HfError:  # the file needs the change
        return named
    return [*named, *(differences(unchanged, loaded.table()) if named else ())]


@contextmanager
def _warnings_on_stderr(bar: ProgressBar | None) -> Iterator[None]:
    """Within this, doubts of hfdsl are shown as findings are, and not with a line of hfdsl's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", HfWarning)
        show_other = warnings.showwarning

        def show(message: Warning | str, *place: Any, **keywords: Any) -> None:
            if bar is not None:
                bar.clear()
            if isinstance(message, HfWarning):
                say(f"warning[{message.code}]: {str(message).removeprefix(f'{message.code}: ')}", file=sys.stderr)
            else:
                show_other(message, *place, **keywords)

        warnings.showwarning = show
        yield


def _resume_hint(saved: Sequence[Path], error: BaseException) -> str:
    """Advise how to continue an ended run; empty if its last checkpoint is the cause of the error."""
    code, message = (error.code, error.message) if isinstance(error, HfError) else ("", "")
    if not saved or code in ("HF905", "HF914"):
        return ""
    if code == "HF906" and re.search(rf"{re.escape(str(saved[-1]))}['{os.sep}]", message):
        before = f"; without that folder, --resume continues from {saved[-2].name}" if len(saved) > 1 else ""
        return f"the last checkpoint, {saved[-1]}, is damaged{before}"
    return f"the last complete checkpoint is {saved[-1]}; --resume continues from it"


def _by_value(source: TargetSource, loaded: Loaded) -> None:
    """Send what a file defines to Ray's workers by value, as if Python had run it."""
    if loaded.config.backend == "ray" and source.script:
        from ray.cloudpickle import register_pickle_by_value

        register_pickle_by_value(source.module)  # type: ignore[no-untyped-call]  # cloudpickle has no types


def _environment(sources: Sequence[TargetSource]) -> dict[str, str]:
    """The import paths that workers need for the program's own modules."""
    roots = dict.fromkeys([*(str(source.root) for source in sources), str(Path.cwd())])
    return {"PYTHONPATH": os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])}


def diff(arguments: argparse.Namespace) -> int:
    """The fields in which two runs, or two files, are configured differently.

    Raises:
        ConfigError: HF901 if one cannot be read.
    """
    places = arguments.first, arguments.second
    beside_run = any(Path(place).is_dir() for place in places)
    first, second = (_fields(place, beside_run=beside_run) for place in places)
    changed = differences(first, second)
    if machine(arguments):
        show_json({name: list(pair) for name, pair in changed.items()})
    elif not changed:
        say(f"the {len(dict(flattened(first)))} fields are the same")
    else:
        width = max(map(len, changed))
        for name, (before, after) in changed.items():
            say(f"{name:{width}}  {_value_text(before)} -> {_value_text(after)}")
    return FINDINGS if changed else OK


def export(arguments: argparse.Namespace) -> int:
    """Save the model of a role from a run's last checkpoint.

    Raises:
        CheckpointError: HF906 if there is none.
    """
    from hfdsl.rl.training.run_folder.export import export as save

    folder = Path(arguments.output)
    say(f"{save(Path(arguments.run), arguments.role, folder, Finder(), adapter=arguments.adapter)} -> {folder}")
    return OK


def schema(arguments: argparse.Namespace) -> int:
    """Write the JSON schema of a configuration, for editors.

    Raises:
        ConfigError: HF901 for a file or a dataflow from which no fields can be read.
    """
    from hfdsl.rl.training.json_schema import json_schema

    text = json.dumps(json_schema(_configuration(arguments.subject), arguments.subject), indent=2, ensure_ascii=False)
    if not arguments.output:
        say(text)
        return OK
    try:
        Path(arguments.output).write_text(text + "\n", "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write '{arguments.output}': {error.strerror}") from None
    return OK


def _configuration(subject: str) -> type:
    """The class of what a subject is: an algorithm, a TOML file of a run or of a deployment, or ``deployment``."""
    short = {name.rpartition(":")[2]: kind for name, kind in READY.items()}
    if subject == "deployment":
        return DeploymentConfig
    if subject in short:
        return short[subject]
    if not subject.endswith(".toml"):
        if ":" not in subject:
            hint = closest(subject, sorted([*short, "deployment"]))
            raise UsageError(f"'{subject}' is no TOML file, no module:name, and no ready-made algorithm; {hint}")
        return READY.get(subject) or read_names({"algorithm": subject}, (), Finder())[0].kind
    table = read_toml(subject)
    if "algorithm" not in table and "pools" in table:
        return DeploymentConfig
    try:
        return read_names({**table, "deployment": None}, (), Finder())[0].kind
    except ConfigError as error:
        raise ConfigError("HF901", f"{subject}: {error.message}") from None


def _fields(place: str, *, beside_run: bool) -> dict[str, Any]:
    """The fields of a run or a file as they are written; those of a file beside a run with all defaults, as a run has.

    Raises:
        ConfigError: HF901 if they cannot be read.
    """
    path = Path(place)
    if path.is_dir():
        return read_toml(path / "config.toml")
    if not beside_run:
        return read_toml(path)
    return tomllib.loads(to_toml(ConfigCheck().load(place, (), Finder()).table()))


def _value_text(value: Any) -> str:
    return value if value == "(absent)" else json.dumps(value, ensure_ascii=False)
