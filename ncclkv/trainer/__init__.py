"""Training over public verbs of the store."""
