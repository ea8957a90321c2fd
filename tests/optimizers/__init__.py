"""Settings, models and cases of all optimizers."""
