"""The command line: parse, call, print, exit code.

Thin on purpose: whatever can be done here can be done from Python. Commands load when they are called, so that an
estimate pays for nothing else.
"""

from __future__ import annotations

from jaxcost.cli.program import main as main
