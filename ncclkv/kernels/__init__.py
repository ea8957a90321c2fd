"""Kernels: arithmetic on buckets, with one interface and one implementation for each device."""
