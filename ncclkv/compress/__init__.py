"""Compressed forms of gradients: their arithmetic on arrays of the host, without communication."""
