"""An aggregation with an underscore."""

from hfdsl.rl.losses import Clip

# good: loss = Clip(0.2, aggregation="token-mean")
loss = Clip(0.2, aggregation="token_mean")  # type: ignore[arg-type]  # <- bad
