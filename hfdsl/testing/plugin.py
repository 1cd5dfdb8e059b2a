"""The pytest plugin: one Ray cluster per session, leak checks after each test, GPU marks, and seeds printed on failure.

pytest finds it where hfdsl is installed. ``-p no:hfdsl.testing.plugin`` leaves it out.
"""

from __future__ import annotations

import gc
import random
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import pytest

CLEANUP_SECONDS = 10.0
"""How long processes and placement groups may take to end after a test."""

OPTIONS: dict[str, tuple[str, str]] = {
    "hf_nodes": ("1", "how many nodes the Ray cluster of the session has, all simulated on this machine"),
    "hf_cpus": ("4", "CPUs that each of its nodes says it has"),
    "hf_gpus": ("0", "GPUs that each of its nodes says it has"),
    "hf_store": ("400", "MiB of the object store of each of its nodes"),
}
"""Options of the ini file, and with dashes of the command line: default and meaning."""

COLLECT_SECONDS = 1.0
"""How long to wait between garbage collections for what they free: each takes tenths of a second of a large process."""

CLUSTER, FAILED, SEED = pytest.StashKey[Any](), pytest.StashKey[bool](), pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Sizes of the cluster, and the seed."""
    group = parser.getgroup("hfdsl")
    for name, (default, text) in OPTIONS.items():
        parser.addini(name, f"hfdsl: {text}", default=default)
        group.addoption(f"--{name.replace('_', '-')}", type=int, default=None, help=f"{text} (ini: {name}, {default})")
    group.addoption("--hf-seed", type=int, default=None, help="what the seeds of tests that take hf_seed derive from")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks; draw a seed unless the command line has one."""
    config.addinivalue_line("markers", "gpu(count=1): needs so many CUDA devices; skipped where there are fewer")
    config.addinivalue_line("markers", "ray: needs a Ray cluster; every test that uses ray_cluster has it")
    seed = config.getoption("--hf-seed")
    config.stash[SEED] = random.SystemRandom().randrange(2**31) if seed is None else seed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses the cluster, and skip what needs more GPUs than there are.

    Under pytest-xdist all Ray tests go to one process, in which they share their cluster. (Its groups are lost with
    pytest 9.2: https://github.com/pytest-dev/pytest-xdist/issues/1386.)
    """
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("ray")
        if item.get_closest_marker("ray") and config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("ray"))
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("gpu"))]
    available = _gpus() if marked else 0
    for item, mark in marked:
        needed = mark.kwargs.get("count", mark.args[0] if mark.args else 1)
        if not isinstance(needed, int):
            continue  # a mark of the project's own with that name
        if needed > available:
            reason = "no CUDA device" if not available else f"{available} of {needed} CUDA devices"
            item.add_marker(pytest.mark.skip(reason=reason))


def _gpus() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the seed of a test that fails, and remember that it failed."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
        if "hf_seed" in getattr(item, "fixturenames", ()):
            base = item.config.stash[SEED]
            text = f"hf_seed was {_seed_of(item)}; the same again: pytest --hf-seed {base} '{item.nodeid}'"
            report.sections.append(("hfdsl seed", text))
    return report


def _seed_of(item: pytest.Item) -> int:
    return zlib.crc32(f"{item.config.stash[SEED]} {item.nodeid}".encode())


@pytest.fixture
def hf_seed(request: pytest.FixtureRequest) -> int:
    """A seed of the test's own, another one in each session unless ``--hf-seed`` sets it; a failure shows it."""
    return _seed_of(request.node)


@pytest.fixture(scope="session")
def ray_cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A Ray cluster of simulated nodes, shared by the whole session; the value is the ``ray`` module.

    Groups are placed on GPUs that its nodes only say they have, and their tensors go directly, by memory that processes
    lend each other.
    """
    sizes = {name: _size(request.config, name) for name in OPTIONS}
    node = {
        "num_cpus": sizes["hf_cpus"],
        "num_gpus": sizes["hf_gpus"],
        "object_store_memory": sizes["hf_store"] * 1024**2,
        "include_dashboard": False,
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # num_gpus=0 leaves CUDA_VISIBLE_DEVICES alone
        import ray

        end = _one_node(ray, node) if sizes["hf_nodes"] == 1 else _several_nodes(ray, node, sizes["hf_nodes"])
        request.config.stash[CLUSTER] = ray
        try:
            yield ray
        finally:
            del request.config.stash[CLUSTER]
            end()


def _size(config: pytest.Config, name: str) -> int:
    option = config.getoption(f"--{name.replace('_', '-')}")
    text = config.getini(name) if option is None else option
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < (0 if name == "hf_gpus" else 1):
        raise pytest.UsageError(f"{name} is a whole number of at least {0 if name == 'hf_gpus' else 1}, got {text!r}")
    return number


def _one_node(ray: Any, node: Mapping[str, Any]) -> Callable[[], None]:
    ray.init(address="local", log_to_driver=False, **node)  # of our own, also where RAY_ADDRESS names another
    end: Callable[[], None] = ray.shutdown
    return end


def _several_nodes(ray: Any, node: Mapping[str, Any], count: int) -> Callable[[], None]:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    for _ in range(count):
        cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)

    def end() -> None:
        ray.shutdown()
        cluster.shutdown()

    return end


# -- leaks


@pytest.fixture(autouse=True)
def _hf_no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuse that a test leaves actors, placement groups or references to objects on the session's cluster.

    Resources of fixtures with a wider scope do not count. Tests without the mark ``ray`` are not checked: the query
    slows down with every actor that has died.
    """
    if not request.node.get_closest_marker("ray"):
        yield
        return
    before = _cluster_resources(request.config)
    yield
    if request.node.stash.get(FAILED, False):
        return  # its traceback holds what the test held
    until, collect = time.monotonic() + CLEANUP_SECONDS, 0.0
    while leaked := {key: label for key, label in _cluster_resources(request.config).items() if key not in before}:
        now = time.monotonic()
        if now > until:
            shown = "\n".join(f"  {label}" for label in sorted(leaked.values()))
            message = f"the test leaves on the Ray cluster, {CLEANUP_SECONDS:g} s after its end:\n{shown}"
            pytest.fail(message, pytrace=False)
        if now >= collect:
            gc.collect()
            collect = time.monotonic() + COLLECT_SECONDS
        time.sleep(0.05)


def _cluster_resources(config: pytest.Config) -> dict[str, str]:
    """Actors, placement groups and references on the cluster, by ID, each with a label."""
    ray = config.stash.get(CLUSTER, None)
    if ray is None or not ray.is_initialized():
        return {}
    from hfdsl.single_controller.ray_internals import actors, references

    resources: dict[str, str] = {}
    for key, actor in actors().items():
        if actor["State"] != "DEAD":
            named = f" '{actor['Name']}'" if actor["Name"] else ""
            of = actor["ActorClassName"].rpartition("<locals>.")[2]
            resources[key] = f"actor {of}{named}, {actor['State'].lower().replace('_', ' ')}"
    for key, group in ray.util.placement_group_table().items():
        if group["state"] != "REMOVED":
            resources[key] = f"placement group '{group['name']}' of {len(group['bundles'])} bundles"
    watched = _watched()
    for key, number in references().items():
        if number and key not in watched:
            resources[key] = f"object {key} ({number} reference{'s' * (number > 1)} in this process)"
    return resources


def _watched() -> set[str]:
    """Objects that launches hold from one step to the next, and those that Ray itself holds for direct transfers.

    A launch that a test leaves behind is found by its actors.
    """
    from hfdsl.single_controller.ray_internals import direct_transfers

    backend = sys.modules.get("hfdsl.runtime.ray.backend")
    launched = backend.RayBackend.launched if backend else ()
    return direct_transfers() | {ref.hex() for running in launched for ref in running.references()}
