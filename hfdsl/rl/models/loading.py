"""Models from a folder or a transformers configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from hfdsl.errors import ResourceError
from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.rl.hub import fetched, local_folder
from hfdsl.rl.models.compilation import compile_blocks
from hfdsl.rl.models.device import device
from hfdsl.rl.models.tensor_parallel import parallelize, tensor_parallel_plan
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.obstacles import missing_token, model_obstacles, refuse
from hfdsl.rl.workers.special_tokens import PAD_ADVICE, no_pad_token
from hfdsl.rl.workers.state_bytes import SCORE_HEAD

_PROGRESS_HOOK = Lock()


def load(config: ModelConfig, tp: AxisGroup | None = None, *, output_layer: bool = True) -> Any:
    """The causal model of a configuration, in its dtype; random weights are drawn on the CPU, the same on every rank.

    With ``tp``, only this rank's slices go to the GPU. Without ``output_layer``, a saved model may lack that layer.

    Raises:
        ResourceError: HF812 if there is no model at the path, the configuration names none, or it cannot be sliced over
            this many ranks; HF964 if the weights at the path do not fit its configuration.

    >>> sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> load(ModelConfig(config={"model_type": "llama", "vocab_size": 100, **sizes})).num_parameters()
    5808
    """
    tp = tp or SoleRank()
    if tp.size > 1 and tp.in_threads and device().type != "cpu":
        raise ResourceError(
            "HF812", f"the mesh axis tp={tp.size} needs a process for every rank on a GPU, as on the Ray backend"
        )
    folder = None if config.path is None else model_folder(config.path)
    settings = _transformers_config(config, folder)
    name = repr(config.path or settings.model_type)
    if tp.size > 1:
        # On the meta device, to report a plan that does not fit before gigabytes are loaded.
        with torch.device("meta"):
            tensor_parallel_plan(AutoModelForCausalLM.from_config(settings), tp.size, name)
    options: dict[str, Any] = {"attn_implementation": config.attention} if config.attention else {}
    with _naming_attention(config.attention, name):
        if folder is not None:
            # In its dtype, since a host has little room for a float32 copy in every process.
            options["dtype"] = getattr(torch, config.dtype)
            model = _saved(folder, settings, name, output_layer, options)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed)
                model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32, **options)
    placed: Any = _on_device(parallelize(model, tp, name), getattr(torch, config.dtype))
    if config.compile:
        compile_blocks(placed)
    return placed.eval()


def _saved(folder: Path, settings: Any, name: str, output_layer: bool, options: dict[str, Any]) -> Any:
    """A saved model with all of its weights; transformers alone would draw at random those that the files lack.

    Raises:
        ResourceError: HF964.
    """
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained  # its declared type lacks the report
    with no_progress_bars(), _no_warnings():  # HF964 reports instead
        model, report = from_pretrained(
            folder,
            config=settings,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # HF964 names them
            **options,
        )
    outputs = model.get_output_embeddings()
    optional = [path for path, layer in model.named_modules() if layer is outputs and not output_layer]
    missing = {weight for weight in report["missing_keys"] if weight.rpartition(".")[0] not in optional}
    shapes = {weight: (tuple(saved), tuple(expected)) for weight, saved, expected in report["mismatched_keys"]}
    differing = [weight for weight in model.state_dict() if weight in missing or weight in shapes]
    if differing:
        weight = differing[0]
        problem = (
            "its files have '{}' of shape {}, but its configuration has {}".format(weight, *shapes[weight])
            if weight in shapes
            else f"its files have no '{weight}'"
        )
        more = f", and {len(differing) - 1} more weights differ" if len(differing) > 1 else ""
        raise ResourceError("HF964", f"the weights at {name} are not those of {type(model).__name__}: {problem}{more}")
    return model


def _on_device(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model on the role's device, with parameters of a dtype.

    Buffers keep their dtype. Rotary frequencies are buffers: in bfloat16 they would be off by up to 1 part in 256,
    which after a few hundred tokens is a different rotation.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device(), dtype)
    return nn.Module.to(model, device())


@contextmanager
def _naming_attention(attention: str | None, name: str) -> Iterator[None]:
    """Within this context, an error of transformers about an unsupported attention names the field that requests it."""
    try:
        yield
    except (ImportError, ValueError) as error:
        named = isinstance(error, ImportError) or (attention or "") in str(error)
        if attention is None or not named:
            raise
        text = f"ModelConfig(attention={attention!r}): the model {name} cannot use it: {error}"
        raise ResourceError("HF812", text) from None


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers within this context; one thread at a time, since its hook is global."""
    with _PROGRESS_HOOK:
        previous_hook = logging.set_tqdm_hook(lambda bar, args, options: bar(*args, **{**options, "disable": True}))
        try:
            yield
        finally:
            logging.set_tqdm_hook(previous_hook)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Let transformers log only errors within this context."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def model_folder(path: str) -> Path:
    """The folder of a saved model; a name on the hub is downloaded if the cache lacks it.

    Raises:
        ResourceError: HF812 if there is no model.
    """
    try:
        folder = fetched(path, weights=True)
    except Exception as error:  # noqa: BLE001  # the hub's client raises errors of many libraries
        reason = str(error).strip().splitlines()
        problem = f"{type(error).__name__}: {reason[0] if reason else ''}"
        raise ResourceError("HF812", f"the Hugging Face hub gives no model {path!r}: {problem}") from None
    if not (folder / "config.json").is_file():
        raise ResourceError(
            "HF812", f"there is no model at {path!r}: no config.json in it; save one with save_pretrained"
        )
    return folder


def _transformers_config(config: ModelConfig, folder: Path | None) -> Any:
    arguments = dict(config.config or {})
    if folder is not None:
        arguments.pop("model_type", None)
        return AutoConfig.from_pretrained(folder, **arguments)
    refuse(model_obstacles(config))
    return AutoConfig.for_model(arguments.pop("model_type"), **arguments)


def end_tokens(config: ModelConfig, model: Any) -> tuple[int, ...]:
    """The tokens that end a response, if the model has any.

    Raises:
        ResourceError: HF812 if the model has no such token.
    """
    if config.end_tokens is not None:
        for token in config.end_tokens:
            _check_token("end_tokens", token, config, model)
        return config.end_tokens
    ends = _own_token("eos_token_id", config, model)
    if ends is None:
        return ()
    return (ends,) if isinstance(ends, int) else tuple(ends)


def pad_token(config: ModelConfig, model: Any) -> int:
    """The token that fills a response after its end.

    Raises:
        ResourceError: HF812 if neither the configuration nor the model names one, or the model has no such token.
    """
    pad = config.pad_token if config.pad_token is not None else _own_token("pad_token_id", config, model)
    if pad is None:
        raise ResourceError("HF812", f"{no_pad_token(config)}; {PAD_ADVICE}")
    _check_token("pad_token", pad, config, model)
    return int(pad)


def _own_token(name: str, config: ModelConfig, model: Any) -> Any:
    """A special token of the model: of its ``generation_config.json`` if it has one, which names every end of a turn.

    Overrides in the configuration of a run come first.
    """
    overridden, own = name in (config.config or {}), getattr(model, "generation_config", None)
    token = None if overridden or own is None else getattr(own, name, None)
    return getattr(model.config, name, None) if token is None else token


def _check_token(field: str, token: int, config: ModelConfig, model: Any) -> None:
    tokens = getattr(model.config, "vocab_size", None)
    if tokens is not None and not 0 <= token < tokens:
        raise ResourceError("HF812", missing_token(field, token, tokens))


def max_sequence_length(model: Any) -> int | None:
    """The most tokens of a sequence, if the model's configuration sets a limit."""
    limit = getattr(model.config, "max_position_embeddings", None)
    return int(limit) if limit else None


def saved_head(path: str | None) -> torch.Tensor | None:
    """The score head that a saved model has beside its backbone, f32[1, H]; None without one."""
    from safetensors import safe_open

    for file in sorted(local_folder(path).glob("*.safetensors")) if path is not None else ():
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # no dict
                if name.endswith(SCORE_HEAD):
                    return tensors.get_tensor(name)  # type: ignore[no-any-return]
    return None
