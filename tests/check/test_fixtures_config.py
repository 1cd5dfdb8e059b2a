"""Configurations with a mistake each, found before launch at their line and key; mended, they have no finding.

``# bad``, ``# good:`` and ``# <-`` mark lines as in the programs of ``fixtures``. Paths are from the repository's root.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hfdsl.check.report import Report
from hfdsl.rl.training.preflight import packages
from hfdsl.tools.target import load
from tests.check.fixture_programs import FIXTURES_CONFIG, config_names, marked_line, mended
from tests.check.test_messages import expected, steady

ROOT = Path(__file__).parents[2]
NAMES = config_names()


@pytest.fixture(autouse=True)
def at_the_root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    node = request.node.name
    monkeypatch.setenv("HF_HUB_OFFLINE", str(int("hf812_hub" in node or "hf902_hub]" in node)))
    has_datasets = "hub" in node or "hf724" in node
    monkeypatch.setattr(packages, "is_installed", lambda package: package != "datasets" or has_datasets)
    for variable in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def reports(path: Path) -> list[Report]:
    return load(str(path), cluster=str(FIXTURES_CONFIG / "data" / "cluster.toml")).reports()


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_found_at_its_line_and_key(name: str) -> None:
    file = FIXTURES_CONFIG / f"{name}.toml"
    report, *others = reports(file.relative_to(ROOT))
    [finding] = report.findings
    assert not any(other.findings for other in others)
    span = finding.primary.span
    assert (finding.code, span.file, span.line) == (
        name[:5].upper(),
        str(file.relative_to(ROOT)),
        marked_line(file),
    )
    key = file.read_text("utf-8").splitlines()[span.line - 1][span.column : span.end_column]
    assert re.fullmatch(r"[a-z_.]+", key)
    assert steady(str(report)) == expected(f"config_{name}", steady(str(report)))


@pytest.mark.parametrize("name", NAMES)
def test_the_mended_configuration_has_no_finding(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.toml"
    file.write_text(mended((FIXTURES_CONFIG / f"{name}.toml").read_text("utf-8")), "utf-8")
    reported = [report.findings for report in reports(file)]
    assert reported == [()] * len(reported)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hf715", "backend=ray"),
        ("hf715", "deployment.pools.all.processes=[1]"),
        ("hf715", "deployment.default.mesh={ tp = 2 }"),
        ("hf715_sliced", "deployment.roles.actor.mesh={ dp = 2 }"),
        ("hf715_lora", "deployment.roles.actor.mesh={ dp = 2 }"),
        ("hf715_lora", "actor.lora=none"),
        ("hf962_target", "actor.model.config.model_type=gemma2"),
        ("hf962_rank", 'actor.lora.targets=["q_proj"]'),
        ("hf951_experts", "actor.model.config.mlp_only_layers=[0]"),
        ("hf951_experts", "actor.model.config.decoder_sparse_step=2"),
        ("hf965", "actor.generation.engine=plain"),
        ("hf966", "actor.generation.engine=builtin"),
        ("hf966", "actor.generation.engine=plain"),
        ("hf966", "deployment.pools.all.processes=[2]"),
        ("hf966", "deployment.pools.all.gpu=false"),
        ("hf966", "actor.model.config.num_hidden_layers=12"),
        ("hf719", "actor.lora={ rank = 4 }"),
        ("hf719", "actor.training.master_weights=true"),
        ("hf715_engine", "actor.generation.engine=auto"),
        ("hf715_engine", "deployment.roles.actor.mesh={ dp = 2 }"),
    ],
)
def test_configurations_beside_a_mistake_are_not_reported(name: str, change: str) -> None:
    [report] = load(str(FIXTURES_CONFIG / f"{name}.toml"), [change]).reports(elsewhere=True)
    assert report.findings == ()


@pytest.mark.parametrize(
    ("name", "change", "code", "primary", "related"),
    [
        ("hf314_group", "options.group=1", "HF314", "--set options.group=1", ["", "declared here"]),
        ("hf903_length", "R=40", "HF903", "", ["P = 8", "--set R=40"]),
        ("hf361", "data.source.size=3", "HF361", "--set data.source.size=3", ["B = 4"]),
    ],
)
def test_a_value_of_the_command_line_is_named(
    name: str, change: str, code: str, primary: str, related: list[str]
) -> None:
    [report] = load(str(FIXTURES_CONFIG / f"{name}.toml"), [change]).reports()
    [finding] = [finding for finding in report if finding.code == code]
    assert finding.primary.text == primary
    assert [label.text for label in finding.related] == related


def test_an_engine_of_truncated_samples_is_not_measured() -> None:
    """HF966 compares no engines of such samples; that a policy learns from them is another mistake."""
    [report] = load(str(FIXTURES_CONFIG / "hf966.toml"), ["actor.generation.top_p=0.9"]).reports(elsewhere=True)
    assert report.codes == ("HF727",)


IN_SOURCES = (
    "hf812_arguments", "hf812_function", "hf812_no_model", "hf812_no_rule", "hf812_packing", "hf812_pad",
    "hf812_pattern", "hf812_question", "hf812_token", "hf812_tokens", "hf812_url",
)  # fmt: skip  # a list of names


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMES
        if name[:5] in ("hf710", "hf722", "hf723", "hf724", "hf902", "hf812")
        and name not in ("hf902_evaluation", *IN_SOURCES)
    ],
)
def test_files_and_packages_of_this_machine_are_left_out_elsewhere(name: str) -> None:
    [report, *_] = load(str(FIXTURES_CONFIG / f"{name}.toml")).reports(elsewhere=True)
    assert report.findings == ()


@pytest.mark.parametrize("name", IN_SOURCES)
def test_a_mistake_in_the_sources_is_reported_elsewhere_too(name: str) -> None:
    """A function in a file beside the configuration is part of the sources, which the other machine has as well."""
    [report, *_] = load(str(FIXTURES_CONFIG / f"{name}.toml")).reports(elsewhere=True)
    assert report.codes == ("HF812",)
