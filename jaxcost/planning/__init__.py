"""What follows from the numbers: hardware, rooflines, plans for training runs and serving, search and sweeps.

It reads ledgers and reports and adds no count of its own.
"""
