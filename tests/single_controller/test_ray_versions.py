"""Which versions of Ray are accepted, and that every file that says so agrees."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

from hfdsl.errors import HfWarning, ResourceError
from hfdsl.single_controller.ray_versions import TESTED_VERSIONS, check_version

ROOT = Path(__file__).parents[2]
PRIVATE = re.compile(
    r"^\s*(?:from|import) (?:ray\._private|ray\.experimental|ray\.cloudpickle\.|torch\._)", re.MULTILINE
)


@pytest.mark.parametrize("version", ["2.55.0", "2.55.1", "2.60.0", "2.60.3rc1"])
def test_versions_that_were_tried_pass(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_version(version)


@pytest.mark.parametrize("version", ["2.54.1", "1.13.0", "2.9.3"])
def test_an_older_version_is_refused(version: str) -> None:
    with pytest.raises(ResourceError, match=rf"HF526: Ray {version} is untested: .* 'ray>=2\.55,<2\.61'"):
        check_version(version)


@pytest.mark.parametrize("version", ["2.61.0", "3.0.0"])
def test_a_newer_version_is_warned_of(version: str) -> None:
    with pytest.warns(HfWarning, match=f"HF526: Ray {version} is untested") as caught:
        check_version(version)
    [warning] = caught
    assert isinstance(warning.message, HfWarning)
    assert warning.message.code == "HF526"


def test_a_ray_that_lacks_an_interface_is_refused_by_name() -> None:
    """As 2.54, which has Direct Transport elsewhere."""
    code = """
import sys
import ray
sys.modules["ray.experimental.rdt.util"] = None
import hfdsl.errors
try:
    import hfdsl.single_controller
except hfdsl.errors.ResourceError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert re.match(r"HF526: Ray [\d.]+ is untested \(.*ray\.experimental\.rdt\.util.*\): hfdsl uses", output)


def test_the_extra_takes_what_was_tried() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    [requirement] = [requirement for requirement in extras["ray"] if requirement.startswith("ray")]
    major, minor = map(int, TESTED_VERSIONS[1].split("."))
    assert requirement == f"ray>={TESTED_VERSIONS[0]},<{major}.{minor + 1}"
    assert f"\nray=={TESTED_VERSIONS[1]}." in (ROOT / "constraints.txt").read_text("utf-8")


def test_private_interfaces_are_imported_in_one_place_each() -> None:
    """Submodules of ``ray.experimental`` and ``torch._C`` too; benchmarks and tests may look inside."""
    files = {
        file.relative_to(ROOT).as_posix() for file in (ROOT / "hfdsl").rglob("*.py") if PRIVATE.search(file.read_text())
    }
    assert files == {"hfdsl/single_controller/ray_internals.py", "hfdsl/runtime/rank/torch_internals.py"}
