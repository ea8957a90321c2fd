"""GPT-2 of 124 M (Radford et al., 2019) with tied embeddings: 148 keys, 124,439,808 elements."""

from __future__ import annotations

WORDS, POSITIONS = 50257, 1024
WIDTH, LAYERS = 768, 12


def shapes() -> dict[str, tuple[int, ...]]:
    """Return shapes of embeddings, 12 layers and a last normalisation; inputs by outputs."""
    found: dict[str, tuple[int, ...]] = {"words": (WORDS, WIDTH), "positions": (POSITIONS, WIDTH)}

    def dense(name: str, inputs: int, outputs: int) -> None:
        found[f"{name}.weight"] = (inputs, outputs)
        found[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = (WIDTH,)
        found[f"{name}.bias"] = (WIDTH,)

    for layer in range(LAYERS):
        norm(f"{layer}.norm1")
        dense(f"{layer}.attention", WIDTH, 3 * WIDTH)
        dense(f"{layer}.projection", WIDTH, WIDTH)
        norm(f"{layer}.norm2")
        dense(f"{layer}.in", WIDTH, 4 * WIDTH)
        dense(f"{layer}.out", 4 * WIDTH, WIDTH)
    norm("norm")
    return found
