"""An alphabet with a character twice."""

from hfdsl.rl.data.tokenizers import Characters

# good: tokenizer = Characters("abc")
tokenizer = Characters("abcba")  # <- bad
