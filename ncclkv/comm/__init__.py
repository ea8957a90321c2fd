"""Communicators: ranks that reduce and move buffers, and small host objects beside them."""
