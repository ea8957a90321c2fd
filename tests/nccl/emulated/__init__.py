"""Layer 3b: the real CuPy on an emulated device; see README.md in this folder.

The layer shows of CUDA, NCCL and GPUs only the rules that were written down from their documents.
"""
