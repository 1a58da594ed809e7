"""What is declared: the six records (architecture, workload, state policy, execution, convention, observation), the case
that joins them, and the errors that reject a bad one. Everything else imports this room; it imports none of them.
"""
