"""A copy of weights that is used after a load that failed in the middle."""

from contextlib import suppress

from hfdsl.rl.models.copies import LoadFence

fence, weights = LoadFence(), {"a": 0, "b": 0}
for values in (["1", "two"], ["1", "2"]):
    with suppress(ValueError), fence.loading():
        for name, value in zip(weights, values, strict=True):
            weights[name] = int(value)
    # good: continue
    break  # bad
fence.check()  # <-
