"""After a loss of processes: back to a copy of all states, then the same steps again."""
