"""Collectives on GPUs, by NCCL; imported when a store first requests a GPU."""
