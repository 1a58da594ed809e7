"""The second witness: what the compiler, a checkpoint or a device says about a program.

It compiles in worker processes, reads HLO modules and buffer assignments, and never reads a ledger.
"""
