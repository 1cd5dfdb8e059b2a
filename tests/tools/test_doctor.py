"""The doctor: what it finds, and that it notices what is broken."""

from __future__ import annotations

import argparse
import json
import shutil

import pytest

from hfdsl.tools import doctor
from hfdsl.tools.canary import CHECKERS, SOURCE, faults, sighting
from hfdsl.tools.cli import main
from hfdsl.tools.doctor import DoctorRow, package, vllm


def test_doctor_without_canary(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--no-canary", "--format", "json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"python", "hfdsl", "torch", "ray", "transformers", "mypy", "pyright", "NVIDIA driver"} <= set(rows)
    assert not any("canary" in name for name in rows)
    assert code == any(row["status"] == "broken" for row in rows.values())


def test_a_broken_thing_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [DoctorRow("python", "ok", "3.11"), DoctorRow("ray", "broken", "2.0, older than the 2.54 that hfdsl needs")]
    monkeypatch.setattr(doctor, "_rows", lambda arguments: iter(rows))
    assert doctor.examine(argparse.Namespace(format="human")) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok      python         3.11",
        "broken  ray            2.0, older than the 2.54 that hfdsl needs",
        "",
        "1 broken",
    ]


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", {"old": "1.9.9+cpu", "new": "1.10.0"}.get)
    assert package("old", "run", "1.10") == DoctorRow(
        "old", "broken", "1.9.9+cpu, older than the 1.10 that hfdsl needs to run"
    )
    assert package("new", "run", "1.10") == DoctorRow("new", "ok", "1.10.0")
    assert package("none", "run", "1.10") == DoctorRow("none", "absent", "not installed; needed to run")
    assert package("new", "run", "1.2", "1.11") == DoctorRow("new", "ok", "1.10.0")
    assert package("new", "run", "1.2", "1.10") == DoctorRow(
        "new", "untried", "1.10.0; hfdsl is tested with versions before 1.10"
    )


def test_versions_of_vllm() -> None:
    assert vllm(None).status == "absent"
    assert vllm("0.32.0+cpu") == DoctorRow("vllm", "ok", "0.32.0+cpu")
    assert [vllm(version).status for version in ("0.26.0", "0.33.0", "0.9.1")] == ["ok", "untried", "broken"]
    assert vllm("0.33.0").detail.startswith("vLLM 0.33.0 is untested: hfdsl is tested with 0.26 to 0.32")


def test_a_driver_that_fails_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    assert doctor._driver().status == "broken"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert doctor._driver() == DoctorRow("NVIDIA driver", "absent", "no nvidia-smi")


@pytest.mark.nightly_cases("mypy")
@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.name)
def test_the_checkers_see_every_seeded_fault(checker: object) -> None:
    [real] = [candidate for candidate in CHECKERS if candidate is checker]
    if real.command() is None:
        pytest.skip("not installed")
    seen = real.look()
    assert seen.ok, str(seen)


def test_a_blind_checker_is_noticed() -> None:
    source = SOURCE.read_text(encoding="utf-8")
    seeded = faults(source, torch=True)
    assert len(seeded) >= 10
    assert sighting(source, seeded, torch=True).ok
    blind = sighting(source, {}, torch=True)
    assert not blind.ok
    assert str(blind).startswith(f"sees 0 of {len(seeded)} seeded faults; misses line ")


def test_a_checker_that_refuses_good_lines_is_noticed() -> None:
    source = "x = 1\ny  # fault: no y\n"
    seen = sighting(source, {1: "what?", 2: "no y"}, torch=True)
    assert (seen.ok, str(seen)) == (False, "sees 1 of 1 seeded faults; refuses a good line: line 1 (what?)")


def test_without_torch_its_faults_are_not_expected() -> None:
    source = "y  # fault: no y\nz  # fault with torch: no z\n"
    assert sighting(source, {1: "no y"}, torch=False).ok
    assert sighting(source, {1: "no y", 2: "no z"}, torch=False).ok
    assert not sighting(source, {1: "no y"}, torch=True).ok
