"""Log-probs, entropies and KLs in a policy's loss, as functions of torch and methods that cannot be read make them.

A worked example, of logits of which nothing is known::

    F.log_softmax(logits, -1)                       log-probs of all tokens
    F.cross_entropy(logits, ids)                    minus log-probs
    Categorical(logits=logits).entropy()            an entropy
    F.kl_div(now, ref_log_probs, log_target=True)   a KL, to a reference as its name says
    self.policy.compute_entropy(ids)                an entropy, as its name says
"""

from __future__ import annotations

from dataclasses import replace

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.losses import joins
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.functions import MADE, base_of, distribution_of, named_result, of_tokens
from hfdsl.check.losses.masks import masks_of_both, masks_of_choice
from hfdsl.check.losses.terms import PolicyValue, Quantity, has_kind


def log_prob_result(operation: Operation[PolicyValue], frame: CallFrame) -> PolicyValue:
    """The result of a function of torch that takes something which need not be known; None for other functions."""
    function, source, node = operation.function, operation.source, operation.node
    masks = source.masks if isinstance(source, Quantity) else frozenset[str]()
    match function:
        case "log_softmax":
            distribution = distribution_of(node)
            return distribution.masked(*masks) if isinstance(distribution, Quantity) else None
        case "kl_div" | "kl_divergence":
            return Quantity("kl", base=base_of(node)).masked(*masks_of_both(operation))
        case "entropy" if isinstance(source, Quantity) and source.kind == "categorical":
            return replace(source, kind="entropy")
        case "log_prob" if has_kind(source, "categorical"):
            return Quantity("log_prob").masked(*masks_of_choice(operation))
        case "scale" if source is None and len(operation.others) == 1:
            return operation.others[0]  # of a scaler of gradients
        case "where" if len(operation.others) == 2:
            return joins.either(*operation.others)
    if function in MADE and not has_kind(source, "advantage"):
        return of_tokens(MADE[function].masked(*masks), node)
    named = named_result(operation) if source is None and operation.is_method else None
    frame.collected.by_name.extend([function] if named is not None else [])
    return named
