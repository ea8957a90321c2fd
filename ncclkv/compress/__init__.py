"""Codecs: compressed forms of gradients."""
