"""Names by which a check knows the numbers of a policy's loss: advantages, log-probs, coefficients."""

from __future__ import annotations

import re
from typing import Final

GAIN: Final = re.compile(
    r"(advs?|advantages?|gaes?)(_(hat|norm|normalized|scaled|values?))?|gains?|returns?|rewards?",
)
"""The names of columns of which more is better."""

LOG_PROB: Final = re.compile(r"(.*_)?log_?p(rob)?s?")
"""The names of columns, and of methods that cannot be read, with log-probs of tokens."""

REFERENCE: Final = re.compile(r"(.*[._])?(base|init|initial|ref|reference|sft)([._].*)?")
"""The paths of columns of a reference, and what calls that compare with one mention."""

OTHERS: Final = re.compile(r".*(base|expert|frozen|old|prior|ref|target|teacher).*")
"""The names of models and columns whose log-probs are neither the policy's nor certainly a reference's."""

TEACHER: Final = re.compile(r".*(expert|target|teacher).*")
"""The names of columns of a model that a policy is to become like."""

COEFFICIENT: Final = re.compile(
    r"(?!log_)(.*_)?(alpha|beta|coef|coeff|coefficient|constant|entropy|kl|lam|lambda|scale|steps|temperature"
    r"|weight)s?(_.*)?"
)
"""The names of attributes that weigh a term."""

ENTROPY: Final = re.compile(r"(compute_|get_|token_)?entropy(_from_logits)?")
"""The names of methods that give an entropy, where they cannot be read."""

LOGITS: Final = re.compile(r"(.*_)?logits?(_.*)?")
"""The names of what gives logits of tokens, unless a part of a model does."""

POLICY: Final = re.compile(
    r"(.*_)?(actor|agent|categorical|dist|distribution|llm|lm|model|module|net|network|pi|policy|self)"
)
"""The names of what has an entropy of tokens, where it cannot be read."""

PART: Final = re.compile(
    r"((.*_)?(att|attention|attn|critic|gates?|gating|moe|reward|router|routers|routing|value)|v)"
    r"(_?(dist|head|logits|model|net|probs|scores|weights))*"
)
"""The names of parts of a model whose distributions are not of tokens; ``v`` only with what it is of."""

SAMPLED: Final = re.compile(
    r"(.*_)?(behaviou?r|engine|gen|generation|infer|inference|rollout|sampled?|sampler|sampling|sglang|vllm)_.*"
)
"""The names of columns with log-probs of the policy that sampled."""

PROXIMAL: Final = re.compile(r"(.*_)?prox(imal)?_.*")
"""The names of columns with log-probs of a policy after that, to which a decoupled loss clips its ratio."""

OTHER_MODELS: Final = re.compile(
    r"behaviou?r|copy|critic|ema|engine|frozen|gen(?!eric)|infer|old|prior|prox|ref|rollout|sampl|sglang|target|teacher|vllm"
)
"""The names of models in code that need not be the policy that is updated."""
