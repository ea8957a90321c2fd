"""Engine: values in buckets, their reductions and updates."""
