"""Arithmetic on buckets: one signature, `kernels.base.Kernels`, and one module for each device."""
