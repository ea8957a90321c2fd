"""The list of cases, and the decorator that adds to it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tests.conformance.stores import Stores

Body = Callable[[Stores], None]


@dataclass(frozen=True)
class Case:
    """A test body, with the stores that it is for.

    Attributes
    ----------
    name : str
    body : callable
    sizes, needs, places, in_host_memory
        As for `case`.
    """

    name: str
    body: Body
    sizes: frozenset[int] | None
    needs: str | None
    places: bool
    in_host_memory: bool

    def fits(self, size: int) -> bool:
        """Return whether the case is for a store of `size` ranks."""
        return self.sizes is None or size in self.sizes


CASES: list[Case] = []

SEVERAL = frozenset({2, 3, 4})


def case(
    *,
    sizes: Collection[int] | None = None,
    needs: str | None = None,
    places: bool = False,
    in_host_memory: bool = False,
) -> Callable[[Body], Body]:
    """Add a body to `CASES`.

    Parameters
    ----------
    sizes : collection of int, optional
        The numbers of ranks that the case is for, such as `SEVERAL`; by default any.
    needs : str, optional
        A package without which the case cannot run.
    places : bool
        Whether the body itself sets ``update_on`` of all its stores; it then runs once on a layout.
    in_host_memory : bool
        Whether the case is for stores in host memory alone.
    """

    def add(body: Body) -> Body:
        module = body.__module__.rpartition(".")[2]
        ranks = None if sizes is None else frozenset(sizes)
        name = f"{module}.{body.__name__}"
        CASES.append(Case(name, body, ranks, needs, places, in_host_memory))
        return body

    return add
