"""Targets: ``examples/grpo.py:experiment`` or ``package.module:attribute``, found and imported."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hfdsl.check.report import Report
from hfdsl.check.run import check
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.experiment import Experiment
from hfdsl.errors import HfError, ResourceError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.dims import program_dims
from hfdsl.graph.spans import NOWHERE
from hfdsl.graph.trace import trace
from hfdsl.types.dims import Dim, Sizes

if TYPE_CHECKING:
    from hfdsl.plan.compiled import CompiledPlan
    from hfdsl.tools.rounds import RoundsAndUpdate


class UsageError(Exception):
    """The command line names something that does not exist: exit code 2."""


@dataclass(frozen=True, slots=True)
class TargetSource:
    """An imported module, and the folder where its imports are found; a ``script`` is a file outside of packages."""

    module: ModuleType
    root: Path
    script: bool


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """What a command works on. Without an experiment there is a dataflow whose types alone can be checked.

    ``beside`` has the other dataflows that run on the same workers; they are checked too. With ``shares`` the dataflows
    share one deployment. A step of a run with ``rounds`` is several steps of this dataflow and then one of another.
    """

    text: str
    source: TargetSource
    dataflow: Dataflow[..., Any]
    experiment: Experiment | None
    dims: Mapping[type[Dim], Sizes]
    cluster: Cluster | None = None
    beside: tuple[CommandTarget, ...] = ()
    shares: bool = False
    rounds: RoundsAndUpdate | None = None

    def check(self) -> Report:
        """The report, with the deployment where there is one."""
        deployment = self.experiment.deployment if self.experiment else None
        span = self.experiment.span if self.experiment and not self.shares else NOWHERE  # a file's have no expression
        report = check(self.dataflow.body, deployment, self.dims, self.cluster, span)
        return report.without("HF508") if self.shares else report  # what it has no role for is for the others

    def plans(self, command: str) -> tuple[CompiledPlan, ...]:
        """The plans of a step: one, or that of a round and that of the update.

        Raises:
            UsageError: where the target is a dataflow alone.
            CheckError: where the check finds errors.
            ConfigError: HF901 where rounds do not go with the update.
        """
        return self.rounds.plans() if self.rounds else (self.deployed(command).compile(),)

    def deployed(self, command: str) -> Experiment:
        """The experiment with its sizes.

        Raises:
            UsageError: where the target is a dataflow alone.
        """
        if self.experiment is None:
            raise UsageError(
                f"'{self.text}' is a dataflow without a deployment, which 'hfdsl check' takes; 'hfdsl {command}' needs "
                "an hf.Experiment(dataflow, deployment, dims=...)"
            )
        return replace(self.experiment, dims=self.dims, cluster=self.cluster)


def load(text: str, sizes: Sequence[str] = (), cluster: str | None = None) -> CommandTarget:
    """Find a target; ``sizes`` (``B=64``) and the file of a ``cluster`` override the experiment's own.

    Raises:
        UsageError: where there is no such file, module, attribute or dim, where importing it fails, and where the
            cluster's file describes none.
        HfError: what the program's own declarations raise.
    """
    if text.endswith(".toml"):
        from hfdsl.tools.training import configured

        return configured(text, sizes, _cluster(cluster) if cluster else None)
    place, attribute = parts_of(text)
    source = source_of(place)
    name, value = attribute_of(source.module, attribute, place) if attribute else _only(source.module, place)
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
    described = _cluster(cluster) if cluster else experiment.cluster if experiment else None
    return CommandTarget(
        text=text,
        source=source,
        dataflow=dataflow,
        experiment=experiment,
        dims=dims | _sizes(dataflow, dims, sizes),
        cluster=described,
    )


def _cluster(file: str) -> Cluster:
    try:
        return Cluster.read(file)
    except ResourceError as error:
        raise UsageError(error.message) from None


def discovered(text: str, sizes: Sequence[str] = (), cluster: str | None = None) -> Iterator[CommandTarget]:
    """All programs of a file, or of the files of a folder; files that define none are not imported.

    A program is an experiment, a function that says it returns one, or a dataflow that is in none of these.

    Raises:
        UsageError: where there is no such file or folder, and where importing one fails.
    """
    place, attribute = parts_of(text)
    if attribute or text.endswith(".toml"):
        yield load(text, sizes, cluster)
        return
    for file in _files(Path(place)):
        if not _defines_programs(file):
            continue
        source = source_of(str(file))
        names = [name for name, value in _candidates(source.module) if not isinstance(value, Dataflow)]
        targets = [load(f"{file}:{name}", sizes, cluster) for name in names]
        used = [target.dataflow for target in targets]
        flows = [(n, v) for n, v in _candidates(source.module) if isinstance(v, Dataflow)]
        yield from targets
        yield from (load(f"{file}:{n}", sizes, cluster) for n, v in flows if not any(v is flow for flow in used))


def _files(place: Path) -> list[Path]:
    """A file, or the Python files of a folder less those of hidden folders and of environments."""
    if not place.is_dir():
        return [place]
    files: list[Path] = []
    for entry in sorted(place.iterdir()):
        if entry.is_dir() and not entry.name.startswith((".", "__")) and not (entry / "pyvenv.cfg").exists():
            files += _files(entry)
        elif entry.suffix == ".py" and entry.is_file():
            files.append(entry)
    return files


def _defines_programs(file: Path) -> bool:
    """Whether a file that imports hfdsl names a dataflow or an experiment, as far as its text shows."""
    import ast

    if not file.is_file():
        raise UsageError(f"there is no file '{file}'{_hint(file.name, _python_files(file.parent))}")
    source = file.read_bytes()
    if b"hfdsl" not in source:
        return False
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return True  # importing it shows what is wrong
    named = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in nodes}
    return not named.isdisjoint(("dataflow", "Experiment"))


# -- the module


def parts_of(text: str) -> tuple[str, str]:
    """The file or module, and the attribute or ''.

    >>> parts_of("examples/grpo.py:experiment"), parts_of("package.module")
    (('examples/grpo.py', 'experiment'), ('package.module', ''))
    """
    place, colon, attribute = text.rpartition(":")
    if not colon or attribute.endswith(".py") or "/" in attribute or "\\" in attribute:  # C:\\x.py has a colon too
        return text, ""
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise UsageError(f"'{text}' is no target; write path/to/file.py:attribute or package.module:attribute")
    return place, attribute


def source_of(place: str) -> TargetSource:
    """The module of a file or of a dotted name, imported; errors as for ``load``."""
    path = Path(place)
    if path.suffix == ".py" or path.is_file():
        if not path.is_file():
            raise UsageError(f"there is no file '{place}'{_hint(path.name, _python_files(path.parent))}")
        return _from_file(path.resolve())
    if "/" in place or "\\" in place or not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"'{place}' is neither a Python file nor the dotted name of a module")
    _on_path(Path.cwd())
    for parent in _parents(place):
        if not _exists(parent):
            raise UsageError(f"there is no module '{parent}' in the current directory or among the installed ones")
    return TargetSource(_import(lambda: importlib.import_module(place), place), Path.cwd(), script=False)


def _parents(dotted: str) -> Iterator[str]:
    parts = dotted.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


def _exists(name: str) -> bool:
    """Whether a module is there; asked parent first, since asking imports the parent."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is no package
        return False
    except Exception:  # noqa: BLE001  # the parent's own code raised: importing it shows where
        return True


def _python_files(folder: Path) -> list[str]:
    return [p.name for p in folder.glob("*.py")] if folder.is_dir() else []


def _from_file(path: Path) -> TargetSource:
    """The module of a file: by its dotted name where it is in a package, else as ``python path`` would run it."""
    root, parts = path.parent, [path.stem] if path.stem != "__init__" else []
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    _on_path(root)
    if len(parts) > 1 or path.stem == "__init__":
        return TargetSource(_import(lambda: importlib.import_module(".".join(parts)), str(path)), root, script=False)
    name = path.stem
    while name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
        name += "_"  # a file that has the name of a module which is already there
    module = sys.modules.get(name) or _import(lambda: _execute(name, path), str(path))
    return TargetSource(module, root, script=True)


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"'{path}' cannot be read as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and annotations look their module up while it is being executed
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(action: Callable[[], ModuleType], place: str) -> ModuleType:
    """Run an import. What the user's module raises is shown from the module's own frame on."""
    try:
        return action()
    except (HfError, UsageError):
        raise
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        raise UsageError(f"importing '{place}' fails\n\n{own_traceback(error)}") from None


def own_traceback(error: BaseException) -> str:
    """The traceback from the first frame that is neither hfdsl's command line nor Python's import system."""
    step, skip = error.__traceback__, (str(Path(__file__).parent), "<frozen importlib", importlib.__file__)
    while step is not None and step.tb_frame.f_code.co_filename.startswith(skip):
        step = step.tb_next
    return "".join(traceback.format_exception(type(error), error, step)).rstrip()


# -- the attribute


def attribute_of(module: ModuleType, attribute: str, place: str) -> tuple[str, Any]:
    """A name of a module, and what it names; errors as for ``load``."""
    value: Any = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            names = [name for name in vars(value) if not name.startswith("_")] if hasattr(value, "__dict__") else []
            targets = [name for name, _ in _candidates(module)] if value is module else []
            hint = _hint(part, names) or (f"; its targets are: {', '.join(targets)}" if targets else "")
            raise UsageError(f"'{place}' has no attribute '{attribute}'{hint}") from None
    return attribute, value


def _only(module: ModuleType, place: str) -> tuple[str, Any]:
    """The one target of a module."""
    candidates = list(_candidates(module))
    kept = [pair for pair in candidates if isinstance(pair[1], Experiment)] or [
        p for p in candidates if inspect.isroutine(p[1])
    ]
    kept = kept or candidates
    if len(kept) == 1:
        return kept[0]
    if not candidates:
        raise UsageError(f"'{place}' has neither an hf.Experiment nor a function under @hf.dataflow")
    listed = "".join(f"\n  {place}:{name}" for name, _ in kept)
    raise UsageError(f"'{place}' has {len(kept)} targets; choose one:{listed}")


def _candidates(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Experiments, functions that say they return one, and the dataflows that the module itself defines."""
    seen: list[Any] = []
    for name, value in vars(module).items():
        defined_here = getattr(value, "__module__", None) == module.__name__
        makes = inspect.isfunction(value) and defined_here and _is_experiment(value.__annotations__.get("return"))
        if (isinstance(value, Experiment) or makes or (isinstance(value, Dataflow) and defined_here)) and not any(
            value is other for other in seen
        ):
            seen.append(value)
            yield name, value


def _is_experiment(annotation: object) -> bool:
    return annotation is Experiment or (isinstance(annotation, str) and annotation.endswith("Experiment"))


def _call(function: Callable[[], Any], shown: str) -> Any:
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind < 2]
    if needed:
        raise UsageError(f"'{shown}' takes {', '.join(needed)}; a function that makes a target takes nothing")
    try:
        return function()
    except HfError:
        raise
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        raise UsageError(f"calling '{shown}' fails\n\n{own_traceback(error)}") from None


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def _hint(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


# -- sizes


def _sizes(
    dataflow: Dataflow[..., Any], declared: Mapping[type[Dim], Sizes], texts: Sequence[str]
) -> dict[type[Dim], Sizes]:
    """``B=64`` and the like, by the names of the dims that the program has."""
    if not texts:
        return {}
    known = {dim.__name__: dim for dim in (*program_dims(trace(dataflow.body)), *declared)}
    sizes: dict[type[Dim], Sizes] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            size = int(number)
        except ValueError:
            raise UsageError(f"--set takes DIM=SIZE such as B=64, got '{text}'") from None
        if name not in known:
            raise UsageError(
                f"--set {text}: the program has no dim '{name}'{_hint(name, list(known)) or _there_are(known)}"
            )
        sizes[known[name]] = size
    return sizes


def _there_are(known: Mapping[str, object]) -> str:
    return f"; there are: {', '.join(sorted(known)) or 'none'}"
