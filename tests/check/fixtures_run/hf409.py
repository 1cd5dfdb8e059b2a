"""A protocol that does not say what is collected along two of the axes."""

import hfdsl as hf

# good: halves = hf.Protocol("HALVES", split=("dp",), collect={"dp": "join", "pp": "last", "tp": "first"})
halves = hf.Protocol("HALVES", split=("dp",), collect={"dp": "join"})  # <- bad
