"""The table that all ranks agree on: keys, where they lie, and what a flush will reduce.

Pure: no arrays, no ranks, no clock.
"""
