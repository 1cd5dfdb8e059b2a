"""The outline of a run of TRL's online trainers, in sentences."""

from __future__ import annotations

from hfdsl.interop.pages import Outline, counted
from hfdsl.interop.settings import Configuration, NotKnown
from hfdsl.interop.trl.units import (
    ACCUMULATION,
    GENERATION,
    GROUP,
    ITERATIONS,
    PROCESSES,
    ROWS,
    generation,
    generation_text,
    micro_batch,
    steps_per_generation,
)


def _generation(c: Configuration) -> str:
    total, group = generation(c), c.size(GROUP)
    if total % group:
        raise NotKnown(GROUP, f"{total} completions are not whole groups of {group}", c.span(GROUP))
    return (
        f"A generation is {counted(total, 'completion')}: {generation_text(c)}. With {group} to a prompt ({GROUP}), "
        f"these are {counted(total // group, 'prompt')}."
    )


def _tokens(c: Configuration) -> str:
    return f"A completion has at most {c.size('max_completion_length'):,} tokens (max_completion_length)."


def _loss(c: Configuration) -> str:
    beta = c.value("beta")
    reference = "there is no reference model" if beta == 0 else "a reference model gives its log-probs"
    loss = "Advantages are those of RLOO"
    if c.has("loss_type"):
        loss = f"The loss is {c.value('loss_type')} over {counted(c.size(ITERATIONS), 'iteration')}"
    return f"{loss}; beta = {beta}, so that {reference}."


def _micro_batches(c: Configuration) -> str:
    return (
        f"A micro-batch is {counted(c.size(ROWS), 'completion')} on each of {counted(c.size(PROCESSES), 'process')} "
        f"({ROWS}), {micro_batch(c):,} in all."
    )


def _optimizer_steps(c: Configuration) -> str:
    accumulated, completions = c.size(ACCUMULATION), micro_batch(c)
    return (
        f"An optimizer step takes {counted(accumulated, 'micro-batch')} ({ACCUMULATION}): {accumulated} x "
        f"{completions:,} = {counted(accumulated * completions, 'completion')}."
    )


def _reuse(c: Configuration) -> str:
    passes = steps_per_generation(c) * c.size(ITERATIONS)
    accumulated = c.size(ACCUMULATION)
    if passes < accumulated:
        return f"An optimizer step takes {accumulated / passes:g} generations, all with the same weights."
    return (
        f"A generation is trained in {counted(passes, 'micro-batch')} before the next one is sampled; optimizer steps "
        f"on one generation: {passes / accumulated:g}."
    )


def _processes(c: Configuration) -> str:
    return f"There are {c.size(PROCESSES)} processes, each with one GPU and a share of the model's training."


def _engine(c: Configuration) -> str:
    if c.value("use_vllm") is not True:
        return "Each process generates by itself with transformers (use_vllm = False)."
    if c.value("vllm_mode") == "server":
        return "A vLLM server on GPUs of its own generates, and gets the weights before each generation."
    size = c.size("vllm_tensor_parallel_size")
    share = c.value("vllm_gpu_memory_utilization")
    return (
        f"vLLM generates in the training processes: {c.size(PROCESSES) // size} engines of {counted(size, 'GPU')}, "
        f"with {share:.0%} of the memory of each (vllm_gpu_memory_utilization)."
    )


def _staleness(c: Configuration) -> str:
    passes, accumulated = steps_per_generation(c) * c.size(ITERATIONS), c.size(ACCUMULATION)
    if passes <= accumulated:
        return "Training is on-policy: no optimizer step lies between sampling and training."
    steps = -(-passes // accumulated)
    return f"Training is off-policy by up to {counted(steps - 1, 'optimizer step')}."


def _evaluation(c: Configuration) -> str:
    if c.value("eval_strategy") in (None, "no", False):
        return ""
    group = c.size(GROUP) if c.value("num_generations_eval") is None else c.size("num_generations_eval")
    total = c.size("per_device_eval_batch_size") * c.size(PROCESSES)
    return f"An evaluation batch is {counted(total, 'completion')}, {group} to a prompt."


def _generation_note(c: Configuration) -> str:
    return f"{GENERATION} decides the size of a generation." if c.value(GENERATION) is not None else ""


OUTLINE: Outline = {
    "A generation": (_generation, _generation_note, _tokens, _loss),
    "Optimizer steps": (_micro_batches, _optimizer_steps, _reuse, _evaluation),
    "Who runs where": (_processes, _engine),
    "Staleness": (_staleness,),
}
"""The page of a run."""
