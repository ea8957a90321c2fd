"""Checkpoints as files of arrays and JSON, without ranks or stores.

A checkpoint is a directory of safetensors files and ``checkpoint.json``.  That file describes the
store (`ncclkv.checkpoint.manifest`), and has the version of the format, the author, and size,
SHA-256 and pieces of each file (`ncclkv.checkpoint.files`).  The pieces of a tensor have each
element once.  Residuals of compressed gradients are tensors of their key and sender
(`ncclkv.checkpoint.residuals`).

``checkpoint.sha256`` has the digest of the JSON, in the format of ``sha256sum -c``.  Tensors are
named by the index of their key, because a key may be any text.
"""
