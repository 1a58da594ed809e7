"""How a result looks: tables for a terminal, JSON documents with their schema, HTML.

Formatting only: a number is shown exactly as it was computed, and an unknown is shown as unknown.
"""
