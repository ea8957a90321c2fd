"""Programs of several ranks, drawn from a seed, for a seeded world.

A program is data (`plan`).  `draw` makes a valid program from a seed, and `faults` breaks one in a
known way.  `play` runs a program on one rank and compares every result with `model`.  `oracle`
judges how all ranks ended.
"""
