"""One file per component. Each function takes the builder, appends its tensors and ops, and returns its output's name.

Typed counts: `add` includes subtractions; a reduction over n values counts n adds (or n max); `compare` and `select`
are per element; `rng` counts random numbers drawn; type conversions are not counted.
"""
