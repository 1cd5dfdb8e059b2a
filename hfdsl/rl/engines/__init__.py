"""Generation engines: programs that sample faster than a model's own forward passes, each in a separate process."""
