"""The command line: parse, call, print, exit code.

Thin on purpose: whatever can be done here can be done from Python.
"""
