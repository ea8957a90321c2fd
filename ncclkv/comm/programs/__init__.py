"""Exchanges of several steps, each one generator over a `Wire` of any communicator."""
