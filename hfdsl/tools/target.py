"""Targets: ``examples/grpo.py:experiment``, ``package.module:attribute`` or a run's TOML file, found and loaded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hfdsl.check.rules.placement.loaders import required_parameters
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.experiment import Experiment
from hfdsl.errors import HfError, ResourceError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.dims import program_dims
from hfdsl.graph.trace import trace
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.importing import (
    UsageError,
    attribute_of,
    candidates,
    nearest,
    nearest_file,
    only_target,
    own_traceback,
    parts_of,
    source_of,
)
from hfdsl.types.dims import Dim, Sizes
from hfdsl.types.foreign_text import parse_toml

OF_RUNS = ("data", "deployment", "dims", "output", "roles", "steps")
"""Fields of a run; a configuration has ``algorithm`` and at least one of them."""


def load(text: str, sizes: Sequence[str] = (), cluster: str | None = None) -> CommandTarget:
    """Find a target; ``sizes`` (``B=64``) and the file of a ``cluster`` override the experiment's own.

    Raises:
        UsageError: where there is no such file, module, attribute or dim, where importing it fails, and where the
            cluster's file describes none.
        HfError: what the program's own declarations raise.
    """
    if text.endswith(".toml"):
        from hfdsl.tools.training import configured

        return configured(text, sizes, described_cluster(cluster) if cluster else None)
    place, attribute = parts_of(text)
    source = source_of(place)
    name, value = attribute_of(source.module, attribute, place) if attribute else only_target(source.module, place)
    if inspect.isroutine(value):
        value = _call(value, f"{place}:{name}")
    experiment = value if isinstance(value, Experiment) else None
    dataflow = experiment.dataflow if experiment else value
    if not isinstance(dataflow, Dataflow):
        raise UsageError(
            f"'{place}:{name}' is {_kind(value)}; a target is an hf.Experiment, a function under @hf.dataflow, "
            "or a function without parameters that returns one"
        )
    dims = dict(experiment.dims) if experiment else {}
    described = described_cluster(cluster) if cluster else experiment.cluster if experiment else None
    return CommandTarget(
        text=text,
        source=source,
        dataflow=dataflow,
        experiment=experiment,
        dims=dims | _sizes(dataflow, dims, sizes),
        cluster=described,
    )


def described_cluster(file: str) -> Cluster:
    """The cluster that a TOML file describes.

    Raises:
        UsageError: where it describes none.
    """
    try:
        return Cluster.read(file)
    except ResourceError as error:
        raise UsageError(error.message) from None


def discovered_files(text: str) -> Iterator[str]:
    """The files below a file or folder that define a program or configure a run; a target with its attribute as it is.

    Files of a folder that do neither are left out, without importing them.

    Raises:
        UsageError: where there is no such file or folder.
    """
    place, attribute = parts_of(text)
    if attribute:
        yield text
        return
    for file in _files(Path(place)):
        if _configures_run(file) if file.suffix == ".toml" else _defines_programs(file):
            yield str(file)


def programs_of(text: str, sizes: Sequence[str] = (), cluster: str | None = None) -> Iterator[CommandTarget]:
    """All programs of a file.

    A program is an experiment, a function without parameters that says it returns one, or a dataflow in none of these.

    Raises:
        UsageError: where there is no such file, and where importing it fails.
    """
    place, attribute = parts_of(text)
    if attribute or text.endswith(".toml"):
        yield load(text, sizes, cluster)
        return
    source = source_of(place)
    others = [(name, value) for name, value in candidates(source.module) if not isinstance(value, Dataflow)]
    names = [name for name, value in others if not (inspect.isroutine(value) and required_parameters(value))]
    targets = [load(f"{place}:{name}", sizes, cluster) for name in names]
    used = [target.dataflow for target in targets]
    flows = [(n, v) for n, v in candidates(source.module) if isinstance(v, Dataflow)]
    yield from targets
    yield from (load(f"{place}:{n}", sizes, cluster) for n, v in flows if not any(v is flow for flow in used))


def _files(place: Path) -> list[Path]:
    """A file, or the Python and TOML files of a folder less those of hidden folders, environments and past runs."""
    if not place.is_dir():
        return [place]
    files: list[Path] = []
    for entry in sorted(place.iterdir()):
        if entry.is_dir() and not entry.name.startswith((".", "__")) and not (entry / "pyvenv.cfg").exists():
            files += _files(entry)
        elif entry.suffix in (".py", ".toml") and entry.is_file() and not _is_left_by_run(entry):
            files.append(entry)
    return files


def _is_left_by_run(file: Path) -> bool:
    """Whether a file is the configuration that a run has saved beside its metrics."""
    return file.name == "config.toml" and (file.parent / "metrics.jsonl").is_file()


def _configures_run(file: Path) -> bool:
    """Whether a TOML file configures a run; one that is no TOML does where it begins like one."""
    if not file.is_file():
        raise UsageError(f"there is no file '{file}'")
    text = file.read_text("utf-8", errors="replace")
    try:
        table = parse_toml(text)
    except ValueError:  # no TOML, or a number of too many digits
        return bool(re.search(r"^algorithm\s*=\s*[\"'][\w./\\]+:\w+", text.partition("\n[")[0], re.MULTILINE))
    algorithm = table.get("algorithm")
    return isinstance(algorithm, str) and ":" in algorithm and not table.keys().isdisjoint(OF_RUNS)


def _defines_programs(file: Path) -> bool:
    """Whether a file that imports hfdsl names a dataflow or an experiment, as far as its text shows."""
    import ast

    from hfdsl.check.bodies.names import last_name

    if not file.is_file():
        raise UsageError(f"there is no file '{file}'{nearest_file(file)}")
    source = file.read_bytes()
    if b"hfdsl" not in source:
        return False
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return True  # importing it shows what is wrong
    return any(last_name(node) in ("dataflow", "Experiment") for node in nodes)


def _call(function: Callable[[], Any], shown: str) -> Any:
    if needed := required_parameters(function):
        raise UsageError(f"'{shown}' takes {', '.join(needed)}; a function that makes a target takes nothing")
    try:
        return function()
    except HfError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the user's code may raise anything
        raise UsageError(f"calling '{shown}' fails\n\n{own_traceback(error)}") from None


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


# -- sizes


def _sizes(
    dataflow: Dataflow[..., Any], declared: Mapping[type[Dim], Sizes], texts: Sequence[str]
) -> dict[type[Dim], Sizes]:
    """``B=64`` and the like, by the names of the dims that the program has."""
    if not texts:
        return {}
    by_name = {dim.__name__: dim for dim in (*program_dims(trace(dataflow.body)), *declared)}
    sizes: dict[type[Dim], Sizes] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            size = int(number)
        except ValueError:
            raise UsageError(f"--set takes DIM=SIZE such as B=64, got '{text}'") from None
        if name not in by_name:
            raise UsageError(
                f"--set {text}: the program has no dim '{name}'{nearest(name, list(by_name)) or _there_are(by_name)}"
            )
        sizes[by_name[name]] = size
    return sizes


def _there_are(names: Mapping[str, object]) -> str:
    return f"; there are: {', '.join(sorted(names)) or 'none'}"
