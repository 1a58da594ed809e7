"""Where the two witnesses meet.

Prediction and observation are matched into rows, each with a residual, the explanations that rest on evidence in the
program, and a status. Nothing is repaired here: a mismatch is an output.
"""
