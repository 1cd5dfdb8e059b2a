"""Log-probs that roles give: which of the columns that a method returns are those of tokens, whatever their names are?

A worked example, of a frozen model::

    def score(self, rollout):
        logits = self.model(rollout.ids.tensor).logits
        chosen = logits.log_softmax(-1).gather(-1, rollout.ids.tensor[..., None])[..., 0]
        return Anchored(anchor=chosen, entropy=Categorical(logits=logits).entropy())      ``anchor`` alone
"""

from __future__ import annotations

from functools import lru_cache

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.losses.interpretation import PolicyInterpretation
from hfdsl.check.losses.terms import Quantity
from hfdsl.check.program import Program, signature_of
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.signatures import Signature


def gives_log_probs(program: Program, node: Node, column: str | None) -> bool:
    """Whether a column that a call returns certainly has log-probs of tokens, as the body of a role computes them."""
    signature = signature_of(node)
    if not isinstance(node.op, RoleCall) or signature is None or signature.is_ready_made or column is None:
        return False
    return column in _log_probs(signature, program.role_class(node.role), node.method)


@lru_cache(maxsize=256)
def _log_probs(signature: Signature, role: type, method: str) -> frozenset[str]:
    """The columns with log-probs that a user's method returns; none if it can return others."""
    methods = methods_of(role)
    if method not in methods:
        return frozenset()
    body = PolicyInterpretation.of_method(signature, methods[method], methods, role).completed()
    return frozenset(
        name
        for name, value in body.columns.items()
        if body.is_whole and isinstance(value, Quantity) and value.kind in ("log_prob", "old") and value.sign > 0
    )
