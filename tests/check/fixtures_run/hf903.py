"""A prompt of four tokens where three are the most."""

from hfdsl.rl.data.prompts import Encoder, Prompt
from hfdsl.rl.data.tokenizers import Characters, load_tokenizer

# good: encoder = Encoder(Prompt("{word}>"), load_tokenizer(Characters("abc>")), 4)
encoder = Encoder(Prompt("{word}>"), load_tokenizer(Characters("abc>")), 3)  # bad
print(encoder.encoded({"word": "abc"}, "words.jsonl:1"))  # <-
