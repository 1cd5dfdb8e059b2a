"""A row without the field that the prompt is made of."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hfdsl.rl.data.prompts import Encoder, Prompt
from hfdsl.rl.data.sources import JsonLines
from hfdsl.rl.data.tokenizers import Characters, load_tokenizer

encoder = Encoder(Prompt("{question}"), load_tokenizer(Characters("abc?")), 4)
with TemporaryDirectory() as folder:
    file = Path(folder) / "rows.jsonl"
    # good: file.write_text('{"question": "ab?"}\n{"question": "c?"}\n')
    file.write_text('{"question": "ab?"}\n{"query": "c?"}\n')  # bad
    rows = JsonLines(str(file)).open()
    print(encoder.encoded(rows.row(1), "rows.jsonl:2"))  # <-
