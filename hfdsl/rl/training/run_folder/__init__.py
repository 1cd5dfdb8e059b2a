"""The folder of a run: its lock, checkpoints, samples and exports, and what a resumed run must agree with."""
