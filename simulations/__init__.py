"""Whole fleets in virtual time: the real policy on an event heap, to answer how long and how much
before anyone pays for it."""
