"""The units of TRL's batch sizes, which all count completions: rows of one prompt with one completion.

A worked example: 8 processes, ``per_device_train_batch_size`` 4, ``gradient_accumulation_steps`` 4, ``num_generations``
16 and the defaults otherwise:

- a micro-batch is 4 completions on each process, 4 x 8 = 32 in all;
- ``steps_per_generation`` is ``gradient_accumulation_steps``, so a generation is 32 x 4 = 128 completions, which are
  128 / 16 = 8 prompts: all completions to a prompt must be in it;
- an optimizer step takes 4 micro-batches: 128 completions, the whole generation, so that training is on-policy.
"""

from __future__ import annotations

from hfdsl.interop.settings import Configuration

ROWS, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
STEPS, GENERATION, GROUP = "steps_per_generation", "generation_batch_size", "num_generations"
PROCESSES, ITERATIONS = "num_processes", "num_iterations"


def micro_batch(c: Configuration) -> int:
    """The completions of a micro-batch over all processes."""
    return c.size(ROWS) * c.size(PROCESSES)


def steps_per_generation(c: Configuration) -> int:
    """The micro-batches that are trained on one generation."""
    if c.value(GENERATION) is not None:
        return max(1, c.size(GENERATION) // micro_batch(c))
    return c.size(ACCUMULATION) if c.value(STEPS) is None else c.size(STEPS)


def generation(c: Configuration) -> int:
    """The completions of a generation."""
    return c.size(GENERATION) if c.value(GENERATION) is not None else micro_batch(c) * steps_per_generation(c)


def generation_text(c: Configuration) -> str:
    """How a generation's size is computed, in words."""
    if c.value(GENERATION) is not None:
        return f"{GENERATION} = {c.size(GENERATION)}"
    steps = ACCUMULATION if c.value(STEPS) is None else STEPS
    return (
        f"{ROWS} x {PROCESSES} x {steps} = {c.size(ROWS)} x {c.size(PROCESSES)} x {steps_per_generation(c)} = "
        f"{generation(c)}"
    )
