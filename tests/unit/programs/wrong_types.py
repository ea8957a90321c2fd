"""Mistakes in calls, each with mypy's error on its line; no test runs them.

A comment ``# E:`` has the code of the error and a part of its text.
"""

from __future__ import annotations

import numpy as np

import ncclkv

weight = np.zeros(2)
kv = ncclkv.create("dist")
number: int = kv  # E: assignment "KVStore"

# Keys
kv.push(1.5, weight)  # E: arg-type "float"
kv.push(None, weight)  # E: arg-type "None"
kv.push(b"w", weight)  # E: arg-type "bytes"
kv.init({"a", "b"}, [weight, weight])  # E: arg-type "set[str]"
kv.value(["a"])  # E: arg-type "list[str]"

# Arrays
kv.pull("w", out=3.0)  # E: call-overload "pull"
kv.pushpull("w", 3.0, out=3.0)  # E: arg-type "float"
kv.push("w", [1.0, "2.0"])  # E: list-item "str"
kv.init("w", "zeros")  # E: arg-type "str"
kv.push("w", None)  # E: arg-type "None"
kv.broadcast("w", weight)  # E: call-arg "out"

# The result of pull
kv.pull("w").append(weight)  # E: attr-defined "append"
print(kv.pull(["w"]).shape)  # E: attr-defined "shape"
weight = kv.pull("w", out=weight)  # E: assignment "None"

# Ops and options
kv.init("w", weight, op="median")  # E: arg-type "Literal['median']"
ncclkv.create("dist", update_on="rot")  # E: arg-type "Literal['rot']"
ncclkv.create("dist", updat_on="root")  # E: call-arg "updat_on"
ncclkv.create("dist", missing="zero")  # E: arg-type "Literal['zero']"
ncclkv.create("dist", nonfinite="skip")  # E: arg-type "Literal['skip']"
ncclkv.create("dist", root="0")  # E: arg-type "str"
ncclkv.create("dist", bucket_bytes="25 MiB")  # E: arg-type "Literal['25 MiB']"
ncclkv.create(3)  # E: arg-type "int"
kv.push("w", weight, priority="high")  # E: arg-type "str"

# Arrays without keys
kv.allreduce("w")  # E: arg-type "allreduce"
kv.allreduce(weight, "median")  # E: call-overload "allreduce"
number = kv.allreduce(0.5)  # E: assignment "float"
kv.allreduce(weight, out=1.5)  # E: call-overload "allreduce"
kv.allgather(1.5).append(2)  # E: attr-defined "append"
kv.broadcast_object({}, "0")  # E: arg-type "str"
kv.allgather_object({}).keys()  # E: attr-defined "keys"

# Updaters, optimizers, verbs
kv.set_updater(lambda gradient, stored: None)  # E: arg-type "Callable[[Any, Any], None]"
kv.set_updater(3)  # E: arg-type "int"
kv.set_optimizer("sgd")  # E: arg-type "str"
ncclkv.optimizer.SGD(lr=0.1)  # E: call-arg "lr"
ncclkv.optimizer.SGD(learning_rate="fast")  # E: arg-type "str"
ncclkv.optimizer.Adam(wd="little")  # E: arg-type "wd"
ncclkv.optimizer.Adam(weight_decay=0.1)  # E: call-arg "weight_decay"
kv.pul("w")  # E: attr-defined "pul"
print(kv.load("saved").step)  # E: union-attr "None"
kv.save("saved", step="1")  # E: arg-type "str"
