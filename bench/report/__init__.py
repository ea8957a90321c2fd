"""Tables, JSON files and plots of a run."""
