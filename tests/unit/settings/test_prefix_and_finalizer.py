"""The prefix of the state, and a finalizer of its own."""

from __future__ import annotations

import webop

PREFIX, FINALIZER = "a.example.com", "b.example.com/hold"


def test_a_prefix_that_is_set_again_does_not_replace_a_chosen_finalizer() -> None:
    settings = webop.OperatorSettings()
    settings.persistence.prefix = PREFIX
    settings.persistence.finalizer = FINALIZER
    settings.persistence.prefix = PREFIX
    assert settings.persistence.finalizer == FINALIZER
