"""The table that all ranks agree on: keys, their positions, and the plan of a flush.

Pure: no arrays, no ranks, no clock.
"""
