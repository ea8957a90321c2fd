"""BERT-large, uncased, with its pooler (Devlin et al., 2018): 391 keys, 335,141,888 elements."""

from __future__ import annotations

WORDS, POSITIONS, KINDS = 30522, 512, 2
WIDTH, INNER, LAYERS = 1024, 4096, 24


def shapes() -> dict[str, tuple[int, ...]]:
    """Return shapes of embeddings, 24 layers of attention and two dense layers, and the pooler."""
    found: dict[str, tuple[int, ...]] = {
        "words": (WORDS, WIDTH),
        "positions": (POSITIONS, WIDTH),
        "kinds": (KINDS, WIDTH),
    }

    def dense(name: str, outputs: int, inputs: int) -> None:
        found[f"{name}.weight"] = (outputs, inputs)
        found[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = (WIDTH,)
        found[f"{name}.bias"] = (WIDTH,)

    norm("embedding.norm")
    for layer in range(LAYERS):
        for part in ("query", "key", "value", "output"):
            dense(f"{layer}.{part}", WIDTH, WIDTH)
        norm(f"{layer}.attention.norm")
        dense(f"{layer}.in", INNER, WIDTH)
        dense(f"{layer}.out", WIDTH, INNER)
        norm(f"{layer}.norm")
    dense("pooler", WIDTH, WIDTH)
    return found
