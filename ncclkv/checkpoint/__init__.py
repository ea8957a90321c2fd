"""Checkpoints as files of arrays and JSON, without ranks or stores."""
