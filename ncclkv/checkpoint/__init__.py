"""Checkpoints as files: bytes and arrays, without ranks or stores."""
