"""Runs plans: the one place that sees communicators, kernels and the table together."""
