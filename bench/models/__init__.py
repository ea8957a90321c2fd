"""Keys of known networks: names and shapes of their parameters, in order, without weights."""

from __future__ import annotations

import math
from collections.abc import Callable

from bench.models import bert_large, gpt2, resnet50

Shapes = dict[str, tuple[int, ...]]

MODELS: dict[str, Callable[[], Shapes]] = {
    "ResNet-50": resnet50.shapes,
    "GPT-2": gpt2.shapes,
    "BERT-large": bert_large.shapes,
}


def elements(shapes: Shapes) -> int:
    """Return the count of elements of all keys."""
    return sum(math.prod(shape) for shape in shapes.values())
