"""Faults planted on purpose, each with the tests that must fail by it."""
