"""Calls of every rank, compared and reported when a wait does not end."""
