"""The error of a requirement that the layer does not find."""


class Missing(Exception):
    """Error with a sentence that names what is missing."""
