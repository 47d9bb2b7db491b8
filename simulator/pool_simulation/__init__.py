"""Simulation of whole pools on a virtual clock: the picker's own code decides over engine models."""
