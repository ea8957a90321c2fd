"""Collectives made of messages between two ranks."""
