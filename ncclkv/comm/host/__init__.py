"""Communicators in host memory."""
