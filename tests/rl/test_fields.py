"""Values that make no sense are refused, by the same rule in Python and in a table of TOML."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import ConfigError, WiringError
from hfdsl.rl import workers as w
from hfdsl.rl.advantages import discounted_returns, gae
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.kl import AdaptiveKL, FixedKL, kl_estimate
from hfdsl.rl.lagrangian import Multiplier
from hfdsl.rl.losses import DPO, Clip, ClippedValue, PolicyLoss, Reinforce, SequenceClip
from hfdsl.rl.masked import aggregated, token_weights
from hfdsl.rl.rewards import overlong_penalty
from hfdsl.rl.training import algorithms
from hfdsl.rl.training.run_config import CheckpointConfig
from hfdsl.rl.training.typed import build

ONE = torch.ones(1, 1)

KINDS: dict[type, dict[str, Any]] = {
    Clip: {},
    SequenceClip: {},
    Reinforce: {},
    ClippedValue: {},
    DPO: {},
    FixedKL: {},
    AdaptiveKL: {},
    Multiplier: {},
    w.GenerationConfig: {"max_tokens": 4},
    w.OptimizerConfig: {},
    w.BatchingConfig: {},
    w.ServerConfig: {"url": "http://localhost/v1", "model": "judge"},
    CheckpointConfig: {},
    algorithms.PPOOptions: {},
    algorithms.DAPOOptions: {},
}
"""Classes of fields with bounds, and what they need."""

FIELDS = [(kind, field.name) for kind, needed in KINDS.items() for field in fields(kind) if field.name not in needed]

NONSENSE: list[tuple[type, str, Any]] = [
    *((kind, "aggregation", "token_mean") for kind in (Clip, SequenceClip, Reinforce, ClippedValue)),
    *((kind, "constant", value) for kind in (Clip, Reinforce, ClippedValue) for value in (0.0, -1.0, math.nan)),
    *((kind, "estimator", "k4") for kind in (Clip, SequenceClip, Reinforce)),
    *((kind, "kl", -0.1) for kind in (Clip, SequenceClip, Reinforce, algorithms.PPOOptions)),
    *((kind, name, -0.2) for kind in (Clip, SequenceClip) for name in ("low", "high")),
    *((Clip, "dual", value) for value in (1.0, 0.0, -3.0)),
    (ClippedValue, "clip", -0.2),
    *((DPO, "beta", value) for value in (0.0, -0.1)),
    *((DPO, "smoothing", value) for value in (-0.1, 0.6)),
    (FixedKL, "coefficient", -0.1),
    *((AdaptiveKL, name, 0.0) for name in ("coefficient", "target")),
    (AdaptiveKL, "gain", -0.1),
    *((Multiplier, name, 0.0) for name in ("value", "largest")),
    (Multiplier, "rate", -0.1),
    (Multiplier, "value", 6.0),  # above the largest
    *((w.GenerationConfig, "temperature", value) for value in (0, 0.0, -1.0, "hot")),
    *((w.GenerationConfig, "top_p", value) for value in (0.0, 1.5, -0.1, math.nan)),
    *((w.GenerationConfig, "top_k", value) for value in (-1, 2.5)),
    *((w.GenerationConfig, "max_tokens", value) for value in (0, -1)),
    (w.GenerationConfig, "engine", "plane"),
    *((w.OptimizerConfig, "betas", value) for value in ([0.9, 1.0], [-0.1, 0.9], [0.9])),
    *((w.OptimizerConfig, "epsilon", value) for value in (0, 0.0, math.nan, math.inf)),
    *((w.OptimizerConfig, name, -1.0) for name in ("learning_rate", "epsilon", "weight_decay", "clip_norm")),
    (w.OptimizerConfig, "schedule", "cosin"),
    (w.OptimizerConfig, "min_lr_ratio", 1.5),
    *((w.BatchingConfig, name, 0) for name in ("tokens", "rows")),
    *((w.ServerConfig, name, 0) for name in ("timeout", "concurrency")),
    (CheckpointConfig, "every", 0),
    *((algorithms.PPOOptions, name, value) for name in ("gamma", "lam") for value in (-0.1, 1.1)),
    (algorithms.PPOOptions, "epochs", 0),
    (algorithms.DAPOOptions, "buffer", 0),
]


def in_python(kind: type, values: dict[str, Any]) -> ConfigError | None:
    try:
        kind(**values)
    except ConfigError as error:
        return error
    return None


def in_toml(kind: type, values: dict[str, Any]) -> ConfigError | None:
    try:
        build(kind, values)
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(("kind", "name", "value"), NONSENSE, ids=str)
def test_nonsense_is_refused_with_its_class_field_and_value(kind: type, name: str, value: Any) -> None:
    values = {**KINDS[kind], name: value}
    error, read = in_python(kind, values), in_toml(kind, values)
    assert error is not None
    assert read is not None
    assert (error.code, read.code) == ("HF940", "HF901")
    for part in (kind.__name__, name, "got " + repr(value if not isinstance(value, list) else value[-1])[:3]):
        assert part in error.message or isinstance(value, list), error.message
    assert name in read.message


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-2, 2) | st.sampled_from([math.inf, -math.inf, math.nan]),
    st.sampled_from(["token-mean", "sequence-mean-token-sum", "k1", "k3", "constant", "plain", "none", "", "x"]),
    st.lists(st.floats(-1, 2), max_size=3),
    st.just({"a": 1}),
)


@given(st.sampled_from(FIELDS), plain)
def test_python_and_toml_refuse_the_same_values(of: tuple[type, str], value: Any) -> None:
    kind, name = of
    default = next(field for field in fields(kind) if field.name == name).default
    if value == "none" or (value is None and default is None) or isinstance(default, (PolicyLoss, ClippedValue)):
        return  # TOML's word for None; a field that is left out; a table of its own
    if isinstance(value, dict) or default is MISSING or isinstance(default, dict):
        return
    values = {**KINDS[kind], name: value}
    assert (in_python(kind, values) is None) == (in_toml(kind, values) is None)


def test_the_nearest_text_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"HF940: Clip: aggregation takes .* got 'token_mean'; did you mean 'token-m"):
        Clip(0.2, aggregation="token_mean")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ConfigError, match=r"'loss.aggregation' takes .*; did you mean 'token-mean'\?"):
        build(algorithms.GRPOOptions, {"loss": {"aggregation": "token_mean"}})
    with pytest.raises(ConfigError, match=r"must be above 0, got 0; for the likeliest tokens call generate\("):
        w.GenerationConfig(4, temperature=0)


def test_values_that_make_sense_are_taken() -> None:
    Clip(math.inf, math.inf, kl=0, entropy=-0.01)
    Clip(0.3, 0.2)  # more room below than above
    w.GenerationConfig(1, temperature=1e-4, top_p=1, top_k=0)
    w.OptimizerConfig(learning_rate=0, betas=[0.9, 0.999], clip_norm=math.inf)  # type: ignore[arg-type]  # works
    for number in (np.float64(0.3), np.float32(0.3), Fraction(1, 3)):
        assert Clip(number).low == number  # type: ignore[arg-type]  # numbers too
    with pytest.raises(ConfigError, match="Clip: low must be at least 0, got"):
        Clip(np.float32(-0.3))  # type: ignore[arg-type]  # numbers too


def test_classes_of_a_user_are_held_to_their_own_annotations() -> None:
    @dataclass(frozen=True, slots=True)
    class Mine(Reinforce):
        aggregation: Literal["mine", "token-mean"] = "mine"  # type: ignore[assignment]  # another
        extra: "Unknown" = None  # type: ignore[name-defined]  # noqa: F821, UP037  # cannot be read

    assert Mine().aggregation == "mine"
    with pytest.raises(ConfigError, match="Mine: kl must be at least 0"):
        Mine(kl=-1.0)


def test_formulas_refuse_them_too() -> None:
    mask = ONE.bool()
    for call in (
        lambda: gae(ONE, ONE, mask, gamma=1.1),
        lambda: gae(ONE, ONE, mask, lam=-0.1),
        lambda: discounted_returns(ONE, mask, gamma=2),
        lambda: kl_estimate(ONE, ONE, "k4"),  # type: ignore[arg-type]  # the mistake
        lambda: token_weights(mask, "token-sum"),  # type: ignore[arg-type]  # the mistake
        lambda: aggregated(ONE, mask, "token_mean"),  # type: ignore[arg-type]  # the mistake
        lambda: token_weights(mask, "sequence-mean-token-sum", constant=0),
        lambda: overlong_penalty(mask, 4, 0),
    ):
        with pytest.raises(ConfigError, match="HF940"):
            call()


def test_an_option_of_a_dataflow_has_bounds() -> None:
    assert ppo.given(gamma=1, lam=0.0, kl=0).options["gamma"] == 1
    with pytest.raises(WiringError, match=r"HF206: option 'gamma' of 'ppo' must be at least 0 and at most 1, got 1.5"):
        ppo.given(gamma=1.5)
    with pytest.raises(WiringError, match=r"HF206: option 'kl' of 'ppo' must be at least 0, got -0.1"):
        ppo.given(kl=-0.1)


def test_a_term_without_its_column_is_refused() -> None:
    for loss in (Clip(kl=0.1), Reinforce(entropy=0.1)):
        with pytest.raises(ConfigError, match=r"HF941: \w+\((kl|entropy)=0.1\) needs"):
            loss(-ONE, -ONE, ONE, ONE)


def test_a_removed_engine_is_refused_with_what_replaces_it() -> None:
    values = {"max_tokens": 4, "engine": "continuous"}
    for error, code in (
        (in_python(w.GenerationConfig, values), "HF940"),
        (in_toml(w.GenerationConfig, values), "HF901"),
    ):
        assert error is not None
        assert error.code == code
        assert "takes no 'continuous' any more; 'auto' and 'vllm' replace it" in error.message
