"""ResNet-50 (He et al., 2015) with 1,000 classes: 161 keys, 25,557,032 elements."""

from __future__ import annotations

BLOCKS = (3, 4, 6, 3)
"""Bottlenecks of each stage."""

EXPANSION = 4
"""Output channels of a bottleneck, relative to its inner channels."""


def shapes() -> dict[str, tuple[int, ...]]:
    """Return shapes of convolutions without bias, each with its normalisation."""
    found: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, outputs: int, inputs: int, width: int) -> None:
        found[f"{name}.weight"] = (outputs, inputs, width, width)
        found[f"{name}.norm.weight"] = (outputs,)
        found[f"{name}.norm.bias"] = (outputs,)

    convolution("stem", 64, 3, 7)
    inputs = 64
    for stage, blocks in enumerate(BLOCKS):
        inside = 64 * 2**stage
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            convolution(f"{name}.1", inside, inputs, 1)
            convolution(f"{name}.2", inside, inside, 3)
            convolution(f"{name}.3", inside * EXPANSION, inside, 1)
            if block == 0:
                convolution(f"{name}.shortcut", inside * EXPANSION, inputs, 1)
            inputs = inside * EXPANSION
    found["classes.weight"] = (1000, inputs)
    found["classes.bias"] = (1000,)
    return found
