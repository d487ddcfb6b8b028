"""Admission: what decides about writes before they are stored. Here, everything is admitted."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from .kinds import Kind
from .messages import Json, Request
from .store import Store


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that is reviewed."""

    verb: str
    kind: Kind
    subresource: str
    namespace: str
    name: str
    request: Request
    is_dry: bool
    options: Json


class Admission:
    """Admits everything; simulations put webhooks in its place.

    Its methods are generators: what they yield comes out of :meth:`.Cluster.perform`, and they
    receive what is sent to it, or None. So the world can go on while a webhook thinks.
    """

    def mutate(
        self,
        store: Store,
        operation: Operation,
        old: Json | None,
        new: Json | None,
        fit: Callable[[Json], Json],
    ) -> Generator[Any, Any, Json | None]:
        """Return the changed object; ``fit`` makes an object of a patched one again.

        Raises:
            Refusal: the operation is denied.
        """
        del store, operation, old, fit
        yield from ()
        return new

    def validate(
        self, store: Store, operation: Operation, old: Json | None, new: Json | None
    ) -> Generator[Any, Any, None]:
        """Approve the object as it will be stored.

        Raises:
            Refusal: the operation is denied.
        """
        del store, operation, old, new
        yield from ()
