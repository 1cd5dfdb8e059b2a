"""A second run in the folder of the first."""

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from hfdsl.rl.training.run_folder.lock import locked

with TemporaryDirectory() as place, chdir(place), locked(Path("runs/first")):
    # good: second = Path("runs/second")
    second = Path("runs/first")  # bad
    with locked(second):  # <-
        pass
