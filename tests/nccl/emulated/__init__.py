"""Layer 3b: the real CuPy on an emulated device; see README.md in this folder.

It says nothing about CUDA, NCCL or a GPU beyond the rules that were written down from their
documents.
"""
