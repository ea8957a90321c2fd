"""Traces and metrics of a store, made from the events that its instruments receive."""
