"""What is declared: the six records, the case that joins them, and the errors that reject a bad one.

The records are architecture, workload, state policy, execution, convention and observation. Every other room imports
this one; it imports none of them.
"""
