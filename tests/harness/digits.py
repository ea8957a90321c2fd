"""The digits of scikit-learn without scikit-learn, which takes a second to import on each rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_READ = """
import numpy
def load_digits(return_X_y):
    with numpy.load({path!r}) as arrays:
        return arrays["images"], arrays["labels"]
"""


def copy(folder: Path) -> None:
    """Make a package sklearn in a folder, which has the digits alone."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", images=images, labels=labels)
    (folder / "sklearn").mkdir()
    (folder / "sklearn" / "__init__.py").touch()
    text = _READ.format(path=str(folder / "digits.npz"))
    (folder / "sklearn" / "datasets.py").write_text(text)
