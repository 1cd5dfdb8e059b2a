"""A role without any time for its calls."""

import hfdsl as hf


class Judge(hf.Worker): ...


pool = hf.ResourcePool([2], use_gpu=False)
# good: judge = hf.place(Judge, pool=pool, deadline=60)
judge = hf.place(Judge, pool=pool, deadline=0)  # <- bad
