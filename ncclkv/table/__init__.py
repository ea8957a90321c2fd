"""The table that all ranks agree on: keys, their ranges in buckets, and the plan of a flush.

Nothing here holds arrays, reads the clock or communicates.
"""
