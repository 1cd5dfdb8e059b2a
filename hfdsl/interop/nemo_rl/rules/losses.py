"""The loss: settings that need or exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.nemo_rl.units import GLOBAL, PROMPTS, SAMPLES, get, on, rows
from hfdsl.interop.reporting import Problem, finding, value_text
from hfdsl.interop.settings import Configuration

LOSS = "loss_fn"
TOKENS, SEQUENCES = f"{LOSS}.token_level_loss", f"{LOSS}.sequence_level_importance_ratios"
FORCED, CISPO, NO_RATIO = f"{LOSS}.force_on_policy_ratio", f"{LOSS}.use_cispo", f"{LOSS}.disable_ppo_ratio"
DUAL, CORRECTION = f"{LOSS}.ratio_clip_c", f"{LOSS}.use_importance_sampling_correction"
TRUNCATION, HIGH, LOW = (f"{LOSS}.truncated_importance_sampling_{name}" for name in ("type", "ratio", "ratio_min"))
KL, SKIP = f"{LOSS}.reference_policy_kl_penalty", "grpo.skip_reference_policy_logprobs_calculation"


def losses_are_consistent(c: Configuration) -> Iterator[Problem]:
    """Kinds of losses do not exclude each other."""
    # ClippedPGLossFn.__init__ in algorithms/loss/loss_functions.py, and setup in algorithms/grpo.py
    tokens = bool(get(c, TOKENS, True))
    if on(c, SEQUENCES) and tokens:
        yield finding(
            c, "HF974", f"{SEQUENCES} is for a loss of sequences, and {TOKENS} = True", SEQUENCES, TOKENS,
            advice=(f"set {TOKENS} to false",),
        )  # fmt: skip
    if on(c, CISPO):
        for key in (NO_RATIO, FORCED, SEQUENCES):
            if on(c, key):
                yield finding(c, "HF974", f"{CISPO} and {key} exclude each other", CISPO, key)
        if get(c, DUAL) is not None:
            yield finding(c, "HF974", f"{CISPO} and {DUAL} = {get(c, DUAL)} exclude each other", CISPO, DUAL)
        if not tokens:
            yield finding(c, "HF974", f"{CISPO} needs {TOKENS} = True", CISPO, TOKENS)
    clip = get(c, DUAL)
    if isinstance(clip, int | float) and clip <= 1:
        yield finding(c, "HF972", f"{DUAL} = {clip} is not above 1", DUAL)
    if on(c, FORCED) and rows(c) != c.size(GLOBAL):
        yield finding(
            c,
            "HF974",
            f"{FORCED} needs one optimizer step a step, and {PROMPTS} x {SAMPLES} = {rows(c)} rows are not "
            f"{GLOBAL} = {c.size(GLOBAL)}",
            FORCED,
            GLOBAL,
            PROMPTS,
            SAMPLES,
            repairs=(GLOBAL, PROMPTS),
        )


def importance_weights_have_bounds(c: Configuration) -> Iterator[Problem]:
    """Truncated importance weights have bounds."""
    # ClippedPGLossFn.__init__
    kind = get(c, TRUNCATION)
    if kind is None:
        return
    low, high = get(c, LOW), get(c, HIGH)
    if not on(c, CORRECTION):
        yield finding(
            c, "HF974", f"{TRUNCATION} = {kind} needs {CORRECTION}", TRUNCATION, CORRECTION,
            advice=(f"set {CORRECTION} to true",),
        )  # fmt: skip
    if kind not in ("tis", "icepop", "seq-mask-tis"):
        yield finding(c, "HF972", f"{TRUNCATION} = {kind} is not one of tis, icepop, seq-mask-tis", TRUNCATION)
    if not isinstance(high, int | float) or high <= 0:
        yield finding(
            c, "HF974", f"{TRUNCATION} = {kind} needs {HIGH} above 0, not {value_text(high)}", TRUNCATION, HIGH
        )
    elif isinstance(low, int | float) and low > high:
        yield finding(c, "HF974", f"{LOW} = {low} is above {HIGH} = {high}", LOW, HIGH)
    if low is None and kind in ("icepop", "seq-mask-tis"):
        yield finding(c, "HF974", f"{TRUNCATION} = {kind} needs {LOW}", TRUNCATION, LOW)
    if kind == "seq-mask-tis" and on(c, SEQUENCES):
        yield finding(c, "HF974", f"{TRUNCATION} = {kind} and {SEQUENCES} exclude each other", TRUNCATION, SEQUENCES)


def references_are_used(c: Configuration) -> Iterator[Problem]:
    """Log-probs of the reference are there where the loss needs them."""
    # setup in algorithms/grpo.py
    if on(c, SKIP) and get(c, KL, 0.01) != 0:
        yield finding(
            c, "HF974", f"{SKIP} needs {KL} = 0, not {get(c, KL, 0.01)}", SKIP, KL, advice=(f"set {KL} to 0",)
        )
