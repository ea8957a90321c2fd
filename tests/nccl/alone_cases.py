"""The cases of compression for a store of one process, of which each array of a key sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclkv.errors import NotSupported, UsageError
from tests.conformance import CASES
from tests.conformance.capabilities import current_buffers
from tests.conformance.captures import CAPTURES, CODECS
from tests.conformance.expect import full, refused, same
from tests.conformance.stores import Stores
from tests.harness.context import context_of

POWERSGD = {"type": "powersgd", "start_powerSGD_iter": 0}


def opened(create: Stores, codec: dict[str, Any], **options: Any) -> Any:
    """Return a store with a matrix, whose gradients a codec encodes."""
    kv = create(**options)
    kv.set_gradient_compression(codec)
    kv.init("w", np.zeros((40, 30), np.float32))
    return kv


def skipped_arrays(create: Stores) -> None:
    """Check that NaN in one of several arrays reaches neither residuals nor a value."""
    rng, put, get = np.random.default_rng(1), current_buffers().put, current_buffers().get
    for codec in (*CODECS, POWERSGD):
        kv = opened(create, codec, nonfinite="skip_step")
        arrays = [put(rng.standard_normal((40, 30)).astype(np.float32)) for _ in range(3)]
        kv.push("w", arrays)
        kv.wait()
        reductions = context_of(kv).engine.reductions
        kept = [kv.pull("w"), *reductions.residuals.all_of("w")]
        assert len(kept) == (4 if kv.gradient_compression("w").get("error_feedback", True) else 1)
        if codec is POWERSGD:
            kept.append(reductions.bases.of(kv.spec("w")).q)
        before = [get(each).tobytes() for each in kept]
        current_buffers().write(arrays[1], np.full((40, 30), np.nan, np.float32))
        kv.push("w", arrays)
        kv.wait()
        kept[0] = kv.pull("w")
        assert [get(each).tobytes() for each in kept] == before, codec


def more_arrays_than_before(create: Stores) -> None:
    """Check that a capture allocates nothing: neither memory of arrays nor residuals."""
    put = current_buffers().put
    gradients = [put(full(n, (40, 30))) for n in (1, 2, 3)]
    for codec in CODECS:
        kv = opened(create, codec)
        kv.push("w", gradients[:2])
        before = current_buffers().get(kv.pull("w")).copy()
        words = "capture allocates no memory", "make the same step once before it is captured"
        with refused(kv, UsageError, *words), kv.capture():
            kv.push("w", gradients)
        same(kv.pull("w"), before)
        kv.push("w", gradients)
        kv.wait()
        with kv.capture() as step:
            kv.push("w", gradients)
        step.replay()
        kv.wait()


def arrays_of_another_type_before(create: Stores) -> None:
    """Check that a capture makes no residuals, which each replay would set to zero."""
    gradients = [current_buffers().put(full(n, (40, 30))) for n in (1, 2, 3)]
    kv = opened(create, {"type": "fp16", "error_feedback": True})
    kv.push("w", gradients)
    kv.wait()
    kv.set_gradient_compression({"type": "bf16", "error_feedback": True})
    with refused(kv, UsageError, "capture allocates no memory"), kv.capture():
        kv.push("w", gradients)


def residuals_come_with_copies(create: Stores) -> None:
    """Check that a push which is never launched leaves no residual for a capture to make."""
    kv = opened(create, {"type": "fp16", "error_feedback": True})
    arrays = [current_buffers().put(full(n, (40, 30))) for n in (1, 2, 3)]
    kv.push("w", arrays[:2])
    kv.wait()
    context = context_of(kv)
    context.engine.reductions.stage(kv.spec("w"), arrays, context.comm.kernels)
    assert len(context.engine.reductions.residuals.all_of("w")) == 3


def matrices_are_not_captured(create: Stores) -> None:
    kv, matrix = opened(create, POWERSGD), current_buffers().put(full(1, (40, 30)))
    kv.push("w", [matrix, matrix])
    kv.wait()
    with refused(kv, NotSupported, "capture: key 'w' is compressed by powersgd"), kv.capture():
        kv.push("w", [matrix, matrix])


BODIES: dict[str, Callable[[Stores], None]] = {
    "skipped_arrays": skipped_arrays,
    "more_arrays_than_before": more_arrays_than_before,
    "arrays_of_another_type_before": arrays_of_another_type_before,
    "residuals_come_with_copies": residuals_come_with_copies,
    "matrices_are_not_captured": matrices_are_not_captured,
    "encoded_gradients": CAPTURES["encoded_gradients"],
    "several_arrays_that_are_encoded": CAPTURES["several_arrays_that_are_encoded"],
}
"""Cases of skipped and of captured launches."""

ALONE_CASES = [
    *(
        pytest.param(case.body, case.needs, id=case.name)
        for case in CASES
        if "compress" in case.name and case.fits(1) and not case.in_host_memory
    ),
    *(pytest.param(body, None, id=name) for name, body in BODIES.items()),
]
"""All cases, each with the package that it needs."""
