"""Functions in a policy's loss: what they do to numbers that rise, or fall, with its log-probs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hfdsl.check import policy_terms as terms
from hfdsl.check.policy_terms import Quantity
from hfdsl.check.row_tensors import functions

SAME: Final = functions(
    "T bfloat16 bool cat chunk clamp clamp_max clamp_min clip clone contiguous cpu cuda double expand expand_as "
    "flatten float half index_select int item long masked_fill masked_select mean movedim nan_to_num nanmean nansum "
    "permute repeat_interleave requires_grad_ reshape split squeeze stack sum to transpose type type_as unsqueeze "
    "unbind view view_as"
)
"""Functions whose result rises with their tensor."""

CLIPS: Final = functions("clamp clamp_max clamp_min clip")
"""Functions that hold numbers between bounds."""

LEAST, MOST = functions("fmin min minimum"), functions("fmax max maximum")
"""Functions that take the smaller, or the greater, of two."""

COUNTS: Final = functions(
    "abs eq full ge gt isfinite isnan le len logical_and logical_not logical_or lt max ne norm numel ones ones_like "
    "shape size square std var"
)
"""Functions whose result is at least 0, whatever they take."""

GROWTHS: Final = functions("exp pow relu sigmoid softmax softplus")
"""Functions whose result is at least 0, if it has no gradient."""

MADE: Final[Mapping[str, Quantity]] = {
    "Categorical": Quantity("categorical"),
    "cross_entropy": Quantity("log_prob", -1, masks=terms.SOME),
    "nll_loss": Quantity("log_prob", -1, masks=terms.SOME),
    "softmax": Quantity("chances"),
}
"""Results of functions of torch, of logits or log-probs that need not be known; labels may leave tokens out."""

BACKWARD: Final = frozenset({"allow_unused", "create_graph", "inputs", "retain_graph"})
"""The options of what takes gradients that leave them as they are."""
