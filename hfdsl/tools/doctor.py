"""``hfdsl doctor``: the software and devices of this machine, and whether they work."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Literal

import hfdsl
from hfdsl.rl.engines.versions import installed_version, is_too_old, untried
from hfdsl.tools.canary import CHECKERS
from hfdsl.tools.output import FINDINGS, OK, machine, say, show_json

PACKAGES = {
    "torch": "run (extra ray)",
    "ray": "run on a cluster (extra ray)",
    "numpy": "run on a cluster (extra ray)",
    "transformers": "run the ready-made roles (extra rl)",
    "matplotlib": "draw PNG (extra draw)",
}
"""The optional packages, and their uses."""

GPUS = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
devices = [f"{gpu.name} {gpu.total_memory / 2**30:.0f} GiB" for gpu in found]
print(json.dumps({"cuda": torch.version.cuda, "devices": devices}))
"""

RAY = """
import ray
ray.init(address="local", num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False)
assert ray.get(ray.remote(lambda: 41 + 1).remote(), timeout=60) == 42
ray.shutdown()
"""


@dataclass(frozen=True, slots=True)
class DoctorRow:
    """One part of the installation and its status.

    ``absent`` may be missing, ``untried`` may work, ``broken`` is installed and does not work.
    """

    name: str
    status: Literal["ok", "absent", "untried", "broken"]
    detail: str


def examine(arguments: argparse.Namespace) -> int:
    """Look at everything; gives the exit code."""
    rows = []
    for row in _rows(arguments):
        rows.append(row)
        if not machine(arguments):
            say(f"{row.status:<7} {row.name:<14} {row.detail}")
    broken = sum(row.status == "broken" for row in rows)
    if machine(arguments):
        show_json([asdict(row) for row in rows])
    else:
        say(f"\n{broken} broken" if broken else "\nnothing is broken")
    return FINDINGS if broken else OK


def _rows(arguments: argparse.Namespace) -> Iterator[DoctorRow]:
    yield DoctorRow("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield DoctorRow("hfdsl", "ok", hfdsl.__version__)
    required = accepted(metadata.requires("hfdsl") or [] if _version("hfdsl") else [])
    for name, purpose in PACKAGES.items():
        yield package(name, purpose, *required.get(name, (None, None)))
    yield vllm(installed_version())
    for checker in CHECKERS:
        if checker.command() is None:
            yield DoctorRow(checker.name, "absent", "not installed; it sees wiring mistakes while you write")
            continue
        yield DoctorRow(checker.name, "ok", _version(checker.name) or "installed")
        if not arguments.no_canary:
            try:
                seen = checker.look()
                yield DoctorRow(f"{checker.name} canary", "ok" if seen.ok else "broken", str(seen))
            except (OSError, RuntimeError) as error:
                yield DoctorRow(f"{checker.name} canary", "broken", str(error))
    yield from _gpus()
    yield from _ray(start=arguments.ray)


def _version(name: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def accepted(requirements: list[str]) -> dict[str, tuple[str, str | None]]:
    """The oldest accepted version of every package, and the first that was not tried; from standard requirements.

    >>> accepted(["ray<2.61,>=2.55; extra == 'ray'", "pyright[nodejs]>=1.1.400; extra == 'typing'", "hfdsl[ray]"])
    {'ray': ('2.55', '2.61'), 'pyright': ('1.1.400', None)}
    """
    versions: dict[str, tuple[str, str | None]] = {}
    for requirement in requirements:
        named, bounds = re.match(r"([\w.-]+)(?:\[[^\]]*\])?", requirement), requirement.partition(";")[0]
        least, end = re.search(r">=\s*([\d.]+)", bounds), re.search(r"<\s*([\d.]+)", bounds)
        if named and least:
            versions[named[1]] = least[1], end[1] if end else None
    return versions


def package(name: str, purpose: str, floor: str | None, end: str | None = None) -> DoctorRow:
    """A package: its version, and whether that is new enough, and not newer than those that were tried."""
    version = _version(name)
    if version is None:
        return DoctorRow(name, "absent", f"not installed; needed to {purpose}")
    if floor and _numbers(version) < _numbers(floor):
        return DoctorRow(name, "broken", f"{version}, older than the {floor} that hfdsl needs to {purpose}")
    if end and _numbers(version) >= _numbers(end):
        return DoctorRow(name, "untried", f"{version}; hfdsl is tested with versions before {end}")
    return DoctorRow(name, "ok", version)


def vllm(version: str | None) -> DoctorRow:
    """The generation engine, and whether hfdsl was tried with its version."""
    if version is None:
        return DoctorRow("vllm", "absent", 'not installed; needed to generate with engine = "vllm"')
    problem = untried(version)
    if problem is None:
        return DoctorRow("vllm", "ok", version)
    return DoctorRow("vllm", "broken" if is_too_old(version) else "untried", problem)


def _numbers(version: str) -> tuple[int, ...]:
    """The release part of a version.

    >>> _numbers("2.13.0+cpu") >= _numbers("2.6")
    True
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _ask(command: list[str], timeout: float) -> tuple[bool, str]:
    """Whether a program succeeds within its time, and its output; of a failure, the last line."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return False, f"no answer within {timeout:g} s"
    except OSError as error:
        return False, str(error)
    output = (process.stdout if process.returncode == 0 else process.stderr or process.stdout).strip()
    return process.returncode == 0, output.splitlines()[-1] if output and process.returncode else output


def _gpus() -> Iterator[DoctorRow]:
    driver = _driver()
    yield driver
    if importlib.util.find_spec("torch") is None:
        return
    works, output = _ask([sys.executable, "-c", GPUS], 120)
    if not works:
        yield DoctorRow("torch GPUs", "broken", output)
        return
    torch_cuda = json.loads(output.splitlines()[-1])
    devices = torch_cuda["devices"]
    if devices:
        names = [f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices)]
        yield DoctorRow("torch GPUs", "ok", f"{', '.join(names)}, CUDA {torch_cuda['cuda']}")
    elif driver.status == "ok" and os.environ.get("CUDA_VISIBLE_DEVICES") is None:
        build = f"built for CUDA {torch_cuda['cuda']}" if torch_cuda["cuda"] else "built without CUDA"
        yield DoctorRow("torch GPUs", "broken", f"the driver has GPUs, and torch, {build}, sees none")
    else:
        yield DoctorRow("torch GPUs", "absent", "none; roles run on CPU pools (use_gpu=False)")


def _driver() -> DoctorRow:
    program = shutil.which("nvidia-smi")
    if program is None:
        return DoctorRow("NVIDIA driver", "absent", "no nvidia-smi")
    works, output = _ask([program, "--query-gpu=name,driver_version", "--format=csv,noheader"], 30)
    if not works:
        return DoctorRow("NVIDIA driver", "broken", output)
    lines = output.splitlines()
    if not lines:
        return DoctorRow("NVIDIA driver", "absent", "nvidia-smi lists no GPU")
    return DoctorRow("NVIDIA driver", "ok", f"{len(lines)} GPU{'s' if len(lines) > 1 else ''}: {lines[0]}")


def _ray(*, start: bool) -> Iterator[DoctorRow]:
    if importlib.util.find_spec("ray") is None:
        return
    works, output = _ask([sys.executable, "-c", RAY if start else "import ray"], 180)
    success = (
        "a local cluster starts, runs a task and stops" if start else "can be imported; --ray starts a local cluster"
    )
    yield DoctorRow("ray start" if start else "ray import", "ok" if works else "broken", success if works else output)
