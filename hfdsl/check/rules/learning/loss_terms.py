"""Terms of losses: does a coefficient have the sign of its term, and can a clip act?

A worked example; only the last loss has its intended effect::

    Clip(kl=0.04, estimator="k1")      # the gradient of log(policy / reference) is 0 on average
    Clip(entropy=-0.01)                # the loss subtracts entropy * H: this lowers the entropy
    Clip(low=20.0, high=28.0)          # percents: a ratio is never below 0, which is 1 - 1
    Clip(low=0.0, high=0.0)            # no room at all, where inf would be no clip
    Clip(low=0.2, high=0.28, entropy=0.01, kl=0.04)

The rule knows a loss by numbers of these names. A loss with a user's own ``__call__`` may weight its KL by the ratio,
which gives ``k1`` the gradient of the KL.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from hfdsl.check.context import Context
from hfdsl.check.dependences import training_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.graph.program import Constant


def terms_do_what_they_say(context: Context) -> Iterator[Finding]:
    """HF946: an entropy bonus is not a penalty, and a clip and a KL to the reference have an effect."""
    reported = set[object]()
    for update in training_calls(context.program):
        losses = [operand.value for _, operand in update.arguments if isinstance(operand, Constant)]
        for number, effect, advice in (doubt for loss in losses for doubt in _doubts(loss)):
            if (update.role, number) not in reported:
                reported.add((update.role, number))
                yield Finding(
                    "HF946",
                    f"the loss of '{update.label}' has {number}: {effect}",
                    Label(update.span),
                    notes=(advice,),
                )


def _is_ready_made(loss: object) -> bool:
    """Whether a loss is computed by hfdsl's code; a function, whose ``__call__`` is of no module, is not."""
    module = getattr(type(loss).__call__, "__module__", None) if callable(loss) else None
    return module is not None and module.startswith("hfdsl.")


def _doubts(loss: object) -> Iterator[tuple[str, str, str]]:
    """The numbers of a loss that are hardly meant, what they do, and what may be meant."""
    kl, entropy, low, high = (getattr(loss, name, None) for name in ("kl", "entropy", "low", "high"))
    if _is_ready_made(loss) and isinstance(kl, (int, float)) and kl and getattr(loss, "estimator", None) == "k1":
        yield (
            f"kl = {kl:g} and estimator = 'k1'",
            "as a term of a loss, k1 has a gradient of 0 on average, so that nothing holds the policy to its reference",
            "k3 is usual in a loss, and k2 has the gradient of the KL; k1 is for a KL in the rewards",
        )
    if isinstance(entropy, (int, float)) and entropy < 0:
        yield (
            f"entropy = {entropy:g}",
            "the bonus is subtracted from the loss, so a negative coefficient makes the policy less random",
            f"for a bonus set entropy to {-entropy:g}",
        )
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return
    if 1 < low < inf:
        yield (
            f"low = {low:g}",
            "a ratio is never below 0, so nothing clips it from below",
            f"the range is a fraction, not a percentage: {low / 100:g} is {low:g} %; inf does not clip",
        )
    if low == high == 0:
        yield (
            "low = 0 and high = 0",
            "every ratio but 1 is clipped, so the policy stops learning from a token once its probability has changed",
            "inf is no clip; usually both are 0.2",
        )
