"""Doctor: rows about an installation and its machines, for ``ncclkv doctor``."""
