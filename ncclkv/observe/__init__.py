"""Traces and metrics of a store, made from the events that its instruments receive.

`serve` gives the metrics to Prometheus.  An `Instrument` receives each event, and a `Launch`
describes a collective to it.  The verbs are `KVStore.add_instrument`, `KVStore.trace` and
`KVStore.metrics`.
"""

from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.observe.prometheus import Served, serve

__all__ = ["Instrument", "Launch", "Served", "serve"]
