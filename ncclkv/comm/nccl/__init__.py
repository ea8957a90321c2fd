"""Collectives on GPUs, by NCCL; nothing here is imported before a store asks for a GPU."""
