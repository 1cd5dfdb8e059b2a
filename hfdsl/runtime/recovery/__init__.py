"""Recovery from lost processes: restore a copy of all states, then repeat the steps since."""
