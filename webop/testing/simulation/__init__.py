"""Whole operators in virtual time: the world of :func:`webop.testing.simulated`.

Flow: the decorator runs a test once for each seed (:mod:`.seeds`), in a :class:`.World`: an API
server in memory, a network, replicas of the operator, all in one event loop that never waits.
"""
