"""A configuration is read, with the roles of its dataflow; what does not fit is reported; placements are data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import ConfigError, ResourceError
from hfdsl.rl.corrections import Correction
from hfdsl.rl.training.algorithms import DrGRPOOptions
from hfdsl.rl.training.config import from_table, load
from hfdsl.rl.training.placement import DeploymentConfig, PlacementConfig, PoolConfig
from hfdsl.rl.training.toml.tables import as_table, read_toml, to_toml
from hfdsl.rl.training.typed import separated
from hfdsl.rl.workers import Reference, Verifier
from tests.rl.training.toy import Adam, Follows, Keen, Policy, ToyConfig, table

SEVERAL = {
    "pools": {
        "left": {"processes": [1], "gpu": False},
        "right": {"processes": [1], "gpu": False},
        "both": {"merged": ["left", "right"]},
        "four": {"processes": [2, 2], "gpu": False},
        "half": {"part_of": "four", "slots": [2, 4]},
    },
    "default": {"pool": "half"},
    "roles": {"policy": {"pool": "both", "mesh": {"dp": 1, "tp": 2}, "colocate": False}},
}


def refused(folder: Path, *changes: str, **values: Any) -> str:
    def placed() -> None:
        loaded = from_table(table(folder, **values), changes)
        loaded.deployment()
        loaded.sizes()

    with pytest.raises(ConfigError) as caught:
        placed()
    return str(caught.value)


def test_roles_are_configured_by_their_own_classes(tmp_path: Path) -> None:
    loaded = from_table(table(tmp_path), ["policy.optimizer.learning_rate=0.5", "B=8", "options.width=3"])
    assert loaded.config.policy == ToyConfig(11, optimizer=Adam(0.5))  # type: ignore[attr-defined]  # of this dataflow
    assert loaded.config.dims == {"B": 8, "P": 3}
    assert loaded.roles == {"policy": Policy, "reward": Follows}
    deployment = loaded.deployment()
    assert deployment["policy"].args == (ToyConfig(11, optimizer=Adam(0.5)),)
    assert loaded.algorithm.compile(deployment, loaded.sizes()).dims == loaded.sizes()
    assert loaded.table()["options"] == {"width": 3, "repeats": 1}


def test_a_table_of_an_option_changes_the_default_of_the_algorithm() -> None:
    file = "tests/check/fixtures_config/hf721.toml"  # dr_grpo, with loss = { constant = 3000 }
    default = DrGRPOOptions().loss
    assert load(file).config.options.loss == replace(default, constant=3000)
    changed = load(file, ["options.loss.constant=none", "options.loss.correction.high=4"]).config.options.loss
    assert changed == replace(default, correction=Correction(high=4))
    assert load(file, ['options.loss={kind="Clip", kl=0.5}']).config.options.loss == replace(default, kl=0.5)


def test_another_class_of_a_role_has_its_own_table(tmp_path: Path) -> None:
    values = {"roles": {"reward": "tests.rl.training.toy:Keen"}, "reward": {"scale": 2}}
    loaded = from_table(table(tmp_path, **values), ["reward.bonus=1"])
    assert loaded.roles["reward"] is Keen
    assert loaded.deployment()["reward"].kwargs == {"scale": 2.0, "bonus": 1}
    assert "'reward' (a table of RewardArguments) is missing" in refused(tmp_path, roles=values["roles"])


def test_what_was_resolved_is_read_again(tmp_path: Path) -> None:
    loaded = from_table(table(tmp_path, deployment=SEVERAL), ["seed=4"])
    file = tmp_path / "again.toml"
    file.write_text(to_toml(loaded.table()))
    assert as_table(load(file).config) == loaded.table()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            "algorithm=tests.rl.training.toy:folow",
            "'algorithm': there is no 'tests.rl.training.toy:folow', which is read",
        ),
        (
            "algorithm=tests.rl.training.toy:LETTERS",
            "'algorithm': 'abcdefgh' is neither a dataflow nor a function that makes",
        ),
        ("options.widht=3", "there is no field 'widht' in 'options'; did you mean 'width'?"),
        (
            "policy.learning_rate=1",
            "there is no field 'learning_rate' in 'policy'; did you mean 'policy.optimizer.learning_rate'?",
        ),
        ("roles.polcy=tests.rl.training.toy:Keen", "roles: 'following' has no role 'polcy'; did you mean 'policy'?"),
        ("roles.reward=tests.rl.training.toy:table", "'tests.rl.training.toy:table' is not a role class, "),
        ("dims.Q=1", "dims: there is no dim 'Q'; there are: B, P, R"),
        ("Q=1", "there is no field 'Q'; there are: algorithm"),
        ("steps=0", "'steps' must be at least 1, got 0"),
        ("B=-8", "'dims.B' must be at least 1, got -8"),
        ("dims={B = 0, P = 3}", "'dims.B' must be at least 1, got 0"),
        ("B=8.0", "'dims.B' takes int, got 8.0"),
        ("B=big", "'dims.B' takes int, got 'big'"),
        ("evaluation.dims.B=-1", "'evaluation.dims.B' must be at least 1, got -1"),
        ("seed=-1", "'seed' must be at least 0, got -1"),
        ("output=", "'output' names no folder; "),
        ("output='  '", "'output' names no folder; "),
        ("record=[1, 0]", "'record[1]' must be at least 1, got 0"),
        ("checkpoints.keep=0", "'checkpoints.keep' must be at least 1, got 0"),
        ("evaluation.algorithm=tests.rl.training.toy:follow", "is not a dataflow"),
        ("deployment=nowhere.toml", "nowhere.toml: No such file or directory"),
        ("deployment.default.pool=al", "there is no pool 'al'; did you mean 'all'?"),
        ("deployment={pools = {}, default = {pol = 'all'}}", "no field 'pol' in 'deployment.default'; did you mean"),
        ("deployment=[1]", "'deployment' takes str or a table, got [1]"),
        ('deployment.pools.all.merged=["all"]', "a pool has processes, merges other pools, or is part_of a pool"),
        ("deployment.default.mesh={dq = 1}", "the mesh of 'policy' has no axis 'dq'; "),
    ],
)
def test_what_does_not_fit_is_reported(change: str, text: str, tmp_path: Path) -> None:
    message = refused(tmp_path, change)
    assert message.startswith("HF901: ")
    assert text in message


def test_places_that_make_no_sense_are_reported(tmp_path: Path) -> None:
    place = {"pools": {"all": {"processes": [2]}}, "default": {"pool": "all"}, "roles": {"polcy": {"pool": "all"}}}
    assert "there is no role 'polcy' to place; did you mean 'policy'?" in refused(tmp_path, deployment=place)
    place = {"pools": {"all": {"processes": [2]}}, "roles": {"policy": {"pool": "all"}}}
    assert "role 'reward' has no place, and there is no default" in refused(tmp_path, deployment=place)
    place = {"pools": {"a": {"merged": ["b", "b"]}, "b": {"merged": ["a"]}}, "default": {"pool": "a"}}
    assert "pool 'a' is defined in terms of itself" in refused(tmp_path, deployment=place)


def test_a_file_is_named_where_it_does_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("algorithm = 3\n[dims")
    with pytest.raises(
        ConfigError, match=rf"HF901: {file}: it is not TOML: Expected ']' at the end of a table declaration"
    ):
        load(file)
    file.write_text("algorithm = 3\n")
    with pytest.raises(ConfigError, match=rf"HF901: {file}: 'algorithm' \(str\) is missing|'algorithm' takes str"):
        load(file)


def test_pools_are_made_as_described(tmp_path: Path) -> None:
    deployment = from_table(table(tmp_path, deployment=SEVERAL)).deployment()
    policy, reward = deployment["policy"], deployment["reward"]
    assert (policy.pool.name, policy.pool.world_size, policy.colocate) == ("both", 2, False)
    assert policy.mesh == hf.Mesh(dp=1, tp=2)
    assert reward.pool.part_of is not None
    assert (reward.pool.part_of[0].name, reward.pool.part_of[1], reward.pool.world_size) == ("four", 2, 2)


def test_offload_as_a_default_is_for_roles_that_can(tmp_path: Path) -> None:
    pools = {"gpus": PoolConfig((1,)), "cpus": PoolConfig((1,), gpu=False)}
    roles: Any = {"reference": (Reference, (), {}), "verifier": (Verifier, (), {}), "apart": (Reference, (), {})}
    places = DeploymentConfig(
        pools, {"apart": PlacementConfig("cpus")}, PlacementConfig("gpus", offload=True)
    ).deployment(roles)
    assert [places[name].offload for name in roles] == [True, None, None]
    on_cpus = DeploymentConfig(pools, {}, PlacementConfig("cpus", offload=True)).deployment(roles)
    assert [on_cpus[name].offload for name in roles] == [None] * 3
    sizes = {"pools": {"all": {"processes": [1]}}, "default": {"pool": "all", "gpu_memory": {"weights": "30%"}}}
    assert str(from_table(table(tmp_path, deployment=sizes)).deployment()["policy"].gpu_memory) == "30% weights"
    by_name = {**sizes, "roles": {"policy": {"pool": "all", "offload": True}}}
    with pytest.raises(ResourceError, match=r"HF525: place\(Policy\): offload=True, and it has no method 'offload"):
        from_table(table(tmp_path, deployment=by_name)).deployment()


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_finding_points_at_the_file_of_the_deployment(tmp_path: Path, quote: str) -> None:
    file = tmp_path / "places.toml"
    file.write_text(to_toml(table(tmp_path)["deployment"]) + "\n[roles.policy]\npool = 'all'\n")
    loaded = from_table(table(tmp_path), [f"deployment={quote}{file}{quote}", "B=5"])
    report = loaded.experiment().check()
    assert report.codes == ("HF310",)
    assert f"{file}:9" in str(report)


def test_a_change_may_replace_a_deployment_by_a_table(tmp_path: Path) -> None:
    file, path = tmp_path / "places.toml", tmp_path / "run.toml"
    file.write_text(to_toml(table(tmp_path)["deployment"]))
    path.write_text(to_toml({**table(tmp_path), "deployment": str(file)}))
    assert load(path).deployment().pools[0].world_size == 2
    alone = "deployment={pools = {other = {processes = [1], gpu = false}}, default = {pool = 'other'}}"
    changes = ["deployment.pools.other.processes=[3]", alone]
    deployment = load(path, changes).deployment()
    assert [(pool.name, pool.world_size) for pool in deployment.pools] == [("other", 3)]
    with pytest.raises(ConfigError, match=r"--set deployment\.default\.pool=all: there is no pool 'all'"):
        load(path, [alone, "deployment.default.pool=all"]).deployment()


def test_a_change_below_what_is_no_table_makes_one_or_is_refused(tmp_path: Path) -> None:
    file, kept = "tests/check/fixtures_config/hf721.toml", ["options.loss.correction.high=4"]
    assert load(file, ["options.loss.correction=none", *kept]).config.options == load(file, kept).config.options
    with pytest.raises(ConfigError, match=r"HF901: policy\.size: 'policy' is 5, which is no table of fields"):
        from_table(table(tmp_path, policy=5), ["policy.size=7"])


def test_a_change_may_be_a_table_with_references() -> None:
    file = "examples/lagged_grpo/grpo.toml"
    loaded = load(file, ["sampler={model = '$actor.model', generation = '$actor.generation'}"])
    assert loaded.table() == load(file).table()
    with pytest.raises(ConfigError, match="no field 'modl' in 'sampler'; did you mean 'model'"):
        load(file, ["sampler={modl = '$actor.model'}"])


@pytest.mark.parametrize(
    ("tokenizer", "field"),
    [
        ({"kind": "Charcters", "alphabet": "ab"}, "data.tokenizer.kind"),
        ({"kind": "Characters", "alphabet": "ab", "lowercase": 1}, "data.tokenizer.lowercase"),
    ],
)
def test_a_mistake_in_a_table_that_is_referred_to_is_one(tokenizer: dict[str, object], field: str) -> None:
    written = read_toml("examples/spelling.toml")
    written["data"]["tokenizer"] = tokenizer  # [reward] has tokenizer = "$data.tokenizer"
    written["actor"]["generation"] = {"max_tokens": "six"}
    with pytest.raises(ConfigError) as caught:
        from_table(written)
    mistakes = [error.message for error in separated(caught.value)]
    assert sorted(message.split()[0].strip("'") for message in mistakes) == ["actor.generation.max_tokens", field]


def test_a_seed_is_a_part_of_the_configuration(tmp_path: Path) -> None:
    assert from_table(table(tmp_path)).table() != from_table(table(tmp_path), ["seed=1"]).table()
    assert from_table(table(tmp_path), ["data.seed=5"]).cursor().seed == 5
