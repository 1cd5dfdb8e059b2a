"""The vLLM engine: the only module that imports vLLM, loaded only in an engine's process.

Duties that vLLM leaves to its callers, and its silent failures:

- The prefix cache holds keys and values of the old weights, so it is reset with them. Rows that are being sampled hold
  theirs as well, so they are preempted: they are resumed by a pass over their prompt and their tokens.
- It begins a decode step before the previous one has returned, so tokens would be in progress while weights are
  replaced, and would be sampled a second time. A load waits for the step that has begun, and collects its tokens.
- Models whose parameters differ from a saved model's only by fusing, slicing and padding are written in place, which
  takes as long as a copy on the device (``hfdsl.rl.engines.vllm_places``). Other models are loaded by
  ``reload_weights``.
- ``reload_weights`` accepts a state that lacks weights: if one of q, k and v is missing, or a whole layer, the old
  values stay. So the names are compared with the model's before anything is sent (``hfdsl.rl.engines.handle``).
- It may load wrong weights into a mixture of experts. On a CPU, even loading the current weights again changes the
  model (log-probs differ by 5 nats). So these models are refused (same module).
- It leaves the old values in a tied output layer, so the model that it is given has no tied output layer (same module).
- It caches the keys and values of prompts by the adapter's name and path alone, so each version of an adapter has its
  own name and path.
- It silently leaves out an adapter of a layer for which it supports none (``hfdsl.rl.workers.engine_adapters`` refuses
  these).
- Before 0.28, weights of a layer with an adapter have another name than in a saved model.
- Greedy rows ignore the temperature, also in their log-probs (``hfdsl.rl.engines.vllm_temperature``).
- After going to sleep, it asserts that the GPU has at least as much free memory as before. Another process on that GPU
  may have taken memory meanwhile, and the engine was then unusable. So it is shown the same figure twice.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch

from hfdsl.rl.engines.interface import Completion, EngineStart, LoadPart, Rendezvous, Stepped, WakePart
from hfdsl.rl.engines.places import PlaceWriter
from hfdsl.rl.engines.vllm_places import vllm_places
from hfdsl.rl.engines.vllm_temperature import at_temperature
from hfdsl.rl.engines.weights import Weights
from hfdsl.rl.workers.engine_adapters import allocated_rank

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",  # a model is a folder
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # this process is the engine's already
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it ignores the seeds of rows
}
ON_CPU: Final = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's process shares the cores
    "TORCHDYNAMO_DISABLE": "1",  # compiling its small kernels takes longer than most runs on a CPU
}

ROWS_AT_ONCE: Final = 512
"""The maximum number of rows in a decode step on a GPU; further rows wait. Each row costs host time: 1,024 rows at
once gave three quarters of the tokens per second of 512 rows."""

GRAPH_TOKENS: Final = (1, 2, 4, *range(8, 256, 8), *range(256, 512, 16), *range(512, 1024, 64), *range(1024, 2049, 128))
"""The token counts for which vLLM captures a step as a CUDA graph. A full batch that admits a waiting row has more
tokens than rows: with vLLM's default, at most 512, each such step launches every kernel, 6 to 13 ms longer."""

RELOADING: Final = "vllm.model_executor.model_loader.reload.layerwise"
"""The vLLM logger that warns about layers without new weights in every reload."""


class VllmEngine:
    """vLLM in this process."""

    def __init__(self, start: EngineStart, folder: Path) -> None:
        on_gpu = torch.cuda.is_available()
        for name, value in {**ENVIRONMENT, **({} if on_gpu else ON_CPU)}.items():
            os.environ.setdefault(name, value)
        os.environ.update(_of_a_part(start.rendezvous))
        shared_memory = "" if on_gpu else _named_shared_memory(start.rendezvous)
        from vllm import LLM  # pyright: ignore[reportMissingImports]  # optional

        logging.getLogger(RELOADING).addFilter(_has_weights)
        self.start = start
        self.sleeps = on_gpu and start.sleeps
        self.adapter: Any = None
        self.adapter_versions = 0
        self.calls: dict[int, _Begun] = {}  # those that are sampled step by step
        self.call_of: dict[str, int] = {}  # by the name of a row that has not ended
        self.finished_steps = 0  # decode steps that a load has waited for
        self.llm = LLM(**at_temperature(_options(start, folder, on_gpu=on_gpu), start.temperature))
        [places] = self.llm.apply_model(partial(vllm_places, start))
        self.writer = None if places is None else PlaceWriter(places)
        self.copies = self.writer is not None
        for segment in Path("/dev/shm").glob(f"{shared_memory}*") if shared_memory else ():
            segment.unlink(missing_ok=True)  # all parts have it open; a part that is killed would leave it there

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Completion]:
        """Complete every prompt, in order."""
        rules = self.rules(prompts, seeds)
        outputs = self.llm.generate(_requests(prompts), rules, use_tqdm=False, lora_request=self.adapter)
        return [_completion(output.outputs[0]) for output in outputs]

    def begin(self, call: int, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> None:
        """Add rows beside those of other calls, without sampling yet."""
        names = self.llm.enqueue(_requests(prompts), self.rules(prompts, seeds), use_tqdm=False)
        states = [self.llm.llm_engine.output_processor.request_states[name] for name in names]
        self.calls[call] = _Begun(states)
        self.call_of |= {str(getattr(state, "external_req_id", state.request_id)): call for state in states}

    def step(self, most: int) -> Stepped:
        """Run decode steps until all rows of a call have ended."""
        steps, self.finished_steps = self.finished_steps, 0
        ended = self._ended()
        while self.calls and not ended and steps < most:
            steps += self._step()
            ended = self._ended()
        self.calls = {call: begun for call, begun in self.calls.items() if call not in ended}
        return Stepped(steps, ended)

    def _step(self) -> int:
        """Begin a decode step, and finish the one before or this one; return how many were finished."""
        ahead, finished = self._steps_ahead, 1
        if ahead is not None:  # the oldest one is finished; it is empty where all rows were about to end
            finished = 1 if ahead and ahead[-1][1].total_num_scheduled_tokens else 0
        for output in self.llm.llm_engine.step():
            if output.finished:
                self.calls[self.call_of.pop(output.request_id)].ended.append(output)
        return finished

    def _ended(self) -> dict[int, list[Completion]]:
        return {call: begun.completions() for call, begun in self.calls.items() if begun.has_ended}

    @property
    def _steps_ahead(self) -> Sequence[Any] | None:
        """The decode steps that have begun and not returned; None if each returns before the next begins."""
        steps: Sequence[Any] | None = self.llm.llm_engine.engine_core.engine_core.batch_queue
        return steps

    def _finish_steps(self) -> None:
        """Wait for the decode steps that have begun, and begin no others."""
        scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        scheduler.has_requests = lambda: False
        try:
            while self._steps_ahead:
                self.finished_steps += self._step()
        finally:
            del scheduler.has_requests

    def rules(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Any]:
        """The ``SamplingParams`` of each row."""
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]  # optional

        start = self.start
        common = partial(
            SamplingParams,
            max_tokens=start.max_tokens,
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
            ignore_eos=True,  # the end tokens are those of the role, not of the model's configuration
            stop_token_ids=list(start.end_tokens),
        )
        if seeds is None:
            return [common(temperature=0.0) for _ in prompts]
        # The temperature is divided by elsewhere, see above.
        return [common(temperature=1.0, top_p=start.top_p, top_k=start.top_k, seed=seed) for seed in seeds]

    def load(self, batches: Iterable[Weights], part: LoadPart) -> None:
        """Replace all weights, or the adapter, and drop the keys and values of the old ones."""
        if self.calls:
            self._finish_steps()
        if part == "adapter":
            self._load_adapter(dict(chain.from_iterable(batches)))
        elif self.writer is not None:
            self.adapter = None
            self.writer.write(batches)
        else:
            self.adapter = None
            name_of = self._names()
            named = ((name_of(name), weight) for name, weight in chain.from_iterable(batches))
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": named})
        for begun in self.calls.values():
            begun.loads.append([state.detokenizer.num_output_tokens() for state in begun.states])
        if not self.llm.reset_prefix_cache(reset_running_requests=bool(self.calls)):
            raise RuntimeError("vLLM did not reset its prefix cache")
        if torch.cuda.is_available():
            # From now on the caller may change them. The reset, the host's pass over all blocks, runs beside the copy.
            torch.cuda.synchronize()

    def share(self) -> dict[str, torch.Tensor] | None:
        """The memory of all weights; None without places."""
        if self.writer is None:
            return None
        places = self.writer.places.items()
        return {name: place.target.detach() for name, place in places}  # vLLM's classes of parameters do not travel

    def forget(self) -> None:
        """Drop the keys and values of the old weights."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache")

    def _load_adapter(self, matrices: Mapping[str, torch.Tensor]) -> None:
        """Load an adapter as a saved one: vLLM reads it from a folder, once."""
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]  # optional

        adapter = self.start.adapter
        if adapter is None:
            raise ValueError("the engine was started without an adapter")
        self.adapter_versions += 1
        saved = {f"base_model.model.{name}": matrix.cpu().contiguous() for name, matrix in matrices.items()}
        config = {"peft_type": "LORA", "r": adapter.rank, "lora_alpha": adapter.alpha, "bias": "none"}
        with tempfile.TemporaryDirectory(prefix="hfdsl-adapter-") as folder:
            save_file(saved, Path(folder) / "adapter_model.safetensors")
            written = json.dumps({**config, "target_modules": list(adapter.layers)})
            (Path(folder) / "adapter_config.json").write_text(written, "utf-8")
            request = LoRARequest(f"version {self.adapter_versions}", self.adapter_versions, folder)
            if not self.llm.llm_engine.add_lora(request):
                raise RuntimeError("vLLM did not accept the adapter")
        self.adapter = request

    def _names(self) -> Callable[[str], str]:
        """A function from the names of a saved model's weights to vLLM's names, where layers have adapters."""
        from vllm.lora.layers.base import BaseLayerWithLoRA  # pyright: ignore[reportMissingImports]  # optional

        if self.start.adapter is None or hasattr(BaseLayerWithLoRA, "load_weights"):
            return str
        [layers] = self.llm.apply_model(_wrapped_layers)
        return partial(_of_base_layer, layers)

    def sleep(self, keep_weights: bool) -> None:
        """Free the GPU's memory; do nothing on a CPU."""
        if self.sleeps:
            with _free_memory_held():
                self.llm.sleep(level=1 if keep_weights else 2)  # at 2 it keeps buffers alone, and wakes with them

    def wake(self, part: WakePart) -> None:
        """Allocate the memory of a part again."""
        if self.sleeps:
            self.llm.wake_up(tags=["weights" if part == "weights" else "kv_cache"])

    def close(self) -> None:
        """Shut down; the process ends with the engine."""


@dataclass(slots=True)
class _Begun:
    """A call sampled step by step: vLLM's request states of its rows, in order, and the outputs of finished rows.

    ``loads`` has an entry for each load since the call began: the number of tokens that each row had.
    """

    states: list[Any]
    ended: list[Any] = field(default_factory=list)
    loads: list[list[int]] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return len(self.ended) == len(self.states)

    def completions(self) -> list[Completion]:
        in_order = sorted(self.ended, key=lambda output: int(output.request_id))  # it counts requests
        return [
            replace(_completion(output.outputs[0]), loaded=tuple(tokens[row] for tokens in self.loads))
            for row, output in enumerate(in_order)
        ]


@contextmanager
def _free_memory_held() -> Iterator[None]:
    """Within this context, torch reports the GPU memory as it was at the start, whatever other processes use."""
    measure = torch.accelerator.get_memory_info
    measured = measure()
    torch.accelerator.get_memory_info = lambda *_: measured
    try:
        yield
    finally:
        torch.accelerator.get_memory_info = measure


def _has_weights(record: logging.LogRecord) -> bool:
    """Whether a message concerns a layer with weights; those about rotary embeddings would flood the shown output.

    >>> [_has_weights(logging.LogRecord("", 30, "", 0, "%s: Failed to load weights", (name,), None))
    ...  for name in ("RotaryEmbedding", "RMSNorm")]
    [False, True]
    """
    return not record.getMessage().startswith("RotaryEmbedding: Failed to load weights")


def _wrapped_layers(model: torch.nn.Module) -> frozenset[str]:
    """The layers of vLLM's model that wrap a base layer for an adapter, each by its names in a saved model."""
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    paths = [path.rpartition(".") for path, layer in model.named_modules() if hasattr(layer, "base_layer")]
    return frozenset(f"{path}{dot}{name}" for path, dot, last in paths for name in packed.get(last, [last]))


def _of_base_layer(layers: frozenset[str], name: str) -> str:
    """The name of a weight whose layer is wrapped for an adapter.

    >>> [_of_base_layer(frozenset({"0.q_proj"}), name) for name in ("0.q_proj.weight", "norm.weight")]
    ['0.q_proj.base_layer.weight', 'norm.weight']
    """
    layer, _, last = name.rpartition(".")
    return f"{layer}.base_layer.{last}" if layer in layers else name


def _options(start: EngineStart, folder: Path, *, on_gpu: bool) -> dict[str, Any]:
    """The arguments of vLLM's ``LLM`` for an engine with these settings."""
    options: dict[str, Any]
    if on_gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        share = (start.cache_bytes + start.weight_bytes) / total
        # The share only has to be free at the start: kv_cache_memory_bytes is what sizes the cache.
        options = {
            "enable_sleep_mode": start.sleeps,
            "gpu_memory_utilization": min(share, 0.95),
            "max_num_seqs": ROWS_AT_ONCE,
            "compilation_config": {"cudagraph_capture_sizes": list(GRAPH_TOKENS)},
        }
    else:
        options = {
            "enforce_eager": True,
            # A row with a seed fails if its prompt is cut in two, so every prompt fits into a step.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(start.max_length, 4096),
        }
    if start.rendezvous is not None:
        options |= {
            "tensor_parallel_size": start.rendezvous.size,
            "distributed_executor_backend": "external_launcher",
            "disable_custom_all_reduce": True,  # it looks at the GPUs of the others, and a process has one
        }
    if start.adapter is not None:
        options |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_cpu_loras": 1,
            "max_lora_rank": allocated_rank(start.adapter.rank),
            "lora_target_modules": list(start.adapter.layers),
        }
    options |= {
        "model": str(folder),
        "runner": "generate",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # not the sampling of the model's own generation_config.json
        "dtype": start.dtype,
        "max_model_len": start.max_length,
        "kv_cache_memory_bytes": start.cache_bytes,
        "enable_prefix_caching": True,
        "load_format": "dummy",
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "seed": 0,
    }
    return options


def _of_a_part(rendezvous: Rendezvous | None) -> dict[str, str]:
    """The variables by which the processes of an engine with several parts find each other."""
    if rendezvous is None:
        return {}
    return {
        "RANK": str(rendezvous.rank),
        "LOCAL_RANK": "0",  # a process has one device
        "WORLD_SIZE": str(rendezvous.size),
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already
        "TORCHELASTIC_RESTART_COUNT": "0",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",  # as for the custom all-reduce
    }


def _named_shared_memory(rendezvous: Rendezvous | None) -> str:
    """A unique prefix for names of shared memory on a CPU: vLLM uses the same names for all engines of a host."""
    from vllm.distributed.device_communicators import (  # pyright: ignore[reportMissingImports]  # optional
        cpu_communicator,
    )

    manager = getattr(cpu_communicator, "_CPUSHMDistributed", None)
    if rendezvous is None or manager is None:
        return ""
    prefix, name_of = f"hfdsl-{rendezvous.port}-", manager.make_group_name
    manager.make_group_name = staticmethod(lambda group: prefix + name_of(group).replace("/", ""))
    return prefix


def _requests(prompts: Sequence[Sequence[int]]) -> list[Any]:
    return [{"prompt_token_ids": list(prompt)} for prompt in prompts]


def _completion(output: Any) -> Completion:
    tokens, log_probs = list(output.token_ids), output.logprobs
    values = [log_probs[i][token].logprob for i, token in enumerate(tokens)]
    return Completion(tokens, values)
