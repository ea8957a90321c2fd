"""The error of what the layer needs and does not find."""


class Missing(Exception):
    """What is missing, in one sentence."""
