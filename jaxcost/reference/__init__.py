"""What is executed: the Equinox network and its steps, written on their own.

No ledger formula is used here, so that a wrong formula and a wrong network cannot agree by construction.
"""
