"""The temperature of a role in vLLM, which divides the logits of greedy rows too.

vLLM divides those of sampled rows alone, so greedy rows would have the log-probs of another policy than the trainer's.
So its rows have a temperature of 1, or of 0 if they are greedy, and all logits are divided before it samples, in
float32. How depends on the runner of the model, of which vLLM has two::

    runner                           logits are divided by             rows with seeds draw their noise
    V1                               a logits processor                one after another
    V2, a dense model on a GPU       the sampler, which is replaced    in one kernel

V2 has no logits processors, and vLLM takes V1 for an engine that asks for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def at_temperature(options: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """The options with which vLLM's ``LLM`` has a temperature; the sampler of this process may change, too."""
    if temperature == 1:
        return dict(options)
    if not _has_runner_v2(options):
        return {**options, "logits_processors": [_divide_by(temperature)]}
    _divide_in_sampler(temperature)
    return dict(options)


def _has_runner_v2(options: Mapping[str, Any]) -> bool:
    """Whether vLLM takes its second runner for these options."""
    from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]  # optional

    return bool(getattr(EngineArgs(**options).create_engine_config(), "use_v2_model_runner", False))


def _divide_in_sampler(temperature: float) -> None:
    """Have the sampler of the second runner divide all logits before anything else."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler  # pyright: ignore[reportMissingImports]  # optional

    apply = Sampler.apply_sampling_params

    def apply_divided(self: Any, logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        applied: torch.Tensor = apply(self, logits.to(torch.float32) / temperature, *args, **kwargs)
        return applied

    Sampler.apply_sampling_params = apply_divided


def _divide_by(temperature: float) -> type:
    """A logits processor of the first runner that divides the logits of all rows, including greedy ones."""
    from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]  # optional
        LogitsProcessor,
    )

    class Temperature(LogitsProcessor):  # type: ignore[misc]  # where vLLM is not installed
        def __init__(self, *args: Any) -> None:
            pass

        def is_argmax_invariant(self) -> bool:
            return False  # else greedy rows leave it out

        def update_state(self, batch_update: Any) -> None:
            pass

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits.div_(temperature)

    return Temperature
