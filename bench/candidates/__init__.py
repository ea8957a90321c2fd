"""Candidates that sum gradients: through a store, and by library calls instead of a store."""
