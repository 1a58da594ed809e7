"""The audit of any compiled program: what it costs, whose word that is, and what could not be told.

A program (`jaxcost.observation.sources`) is read once into `Evidence`; every section of the document is a function of
that evidence and of nothing else. No prediction takes part: nothing here knows what the program was meant to cost.
"""
