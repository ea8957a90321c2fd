"""Memory that the ranks of one node have in common, and collectives through it."""
