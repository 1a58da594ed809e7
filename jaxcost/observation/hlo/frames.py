"""The Python stack behind an instruction.

JAX keeps one for every operation and XLA one index of frames for the module, each frame naming its caller. What the
compiler inlines it prefixes with the stack of the call, so one stretch of calls may stand several times in a row; here
it stands once. A recursion whose calls are all from the same line is folded alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jaxcost.observation.hlo.module import Instruction, Module

MOST_FRAMES = 128
_MOST_FOLLOWED = 4 * MOST_FRAMES  # before what repeats is folded
_MOST_IN_ALL = 4_000_000  # frames followed for one module; beyond it a stack is its innermost frame
_INSTALLED = re.compile(r"(?:^|/)(?:site-packages|dist-packages)/|(?:^|/)lib/python3[^/]*/|^<")
# A module that was stored without the directories of its machine begins the path with the package.
_PACKAGES = frozenset(
    """jax jaxlib equinox flax optax haiku chex numpy einops diffrax lineax optimistix penzai distrax rlax jraph
    orbax ml_collections jaxtyping transformers levanter haliax maxtext axlearn contextlib.py functools.py threading.py
    runpy.py""".split()
)
_DRIVERS = re.compile(r"(?:^|/)jaxcost/(?:observation|audits|cli|verify|__main__\.py)(?:/|\Z)|^<frozen ")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: the file as the compiler was told it, the function's qualified name, the line."""

    file: str
    function: str
    line: int

    @property
    def library(self) -> bool:
        """Whether the file is installed beside the program and is not the program's own."""
        if _INSTALLED.search(self.file):
            return True
        return not self.file.startswith("/") and self.file.split("/", 1)[0] in _PACKAGES

    @property
    def driver(self) -> bool:
        """Whether the frame is of what started the trace, not of what was traced."""
        return bool(_DRIVERS.search(self.file))


class Stacks:
    """The stacks of one module's instructions, each read once."""

    def __init__(self, module: Module) -> None:
        self._index = module.proto.stack_frame_index
        self._frames = len(self._index.stack_frames)
        self._known: dict[int, tuple[Frame, ...]] = {0: ()}
        self._left = _MOST_IN_ALL

    def of(self, instruction: Instruction) -> tuple[Frame, ...]:
        """The calls that lead to an instruction, innermost first; () where the compiler kept none.

        They end where the program that traced it begins (`Frame.driver`).
        """
        return self.at(instruction.metadata.stack_frame_id)

    def at(self, frame_id: int) -> tuple[Frame, ...]:
        """The stack of a frame by its number in the module's index (from 1)."""
        found = self._known.get(frame_id)
        if found is None:
            found = self._known[frame_id] = self._read(frame_id)
        return found

    def _read(self, frame_id: int) -> tuple[Frame, ...]:
        frames: list[Frame] = []
        seen: set[int] = set()
        while 1 <= frame_id <= self._frames and frame_id not in seen and len(seen) < _MOST_FOLLOWED:
            seen.add(frame_id)
            self._left -= 1
            proto = self._index.stack_frames[frame_id - 1]
            frame = self._frame(proto.file_location_id)
            if frame is not None:
                frames.append(frame)
            frame_id = proto.parent_frame_id if self._left > 0 else 0
        inside = next((i for i, frame in enumerate(frames) if frame.driver), len(frames))
        return tuple(_once(frames[:inside])[:MOST_FRAMES])

    def _frame(self, location_id: int) -> Frame | None:
        index = self._index
        if not 1 <= location_id <= len(index.file_locations):
            return None
        location = index.file_locations[location_id - 1]
        if not 1 <= location.file_name_id <= len(index.file_names):
            return None
        named = 1 <= location.function_name_id <= len(index.function_names)
        function = index.function_names[location.function_name_id - 1] if named else ""
        return Frame(index.file_names[location.file_name_id - 1], function, location.line)


def user_frame(stack: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame of the program's own code; of a stack that has none, its innermost frame."""
    return next((frame for frame in stack if not frame.library), stack[0] if stack else None)


def _once(frames: list[Frame]) -> list[Frame]:
    """Drop a stretch of frames that repeats the one before it."""
    kept: list[Frame] = []
    last: dict[Frame, int] = {}  # frame -> where it was kept last
    at = 0
    while at < len(frames):
        before = last.get(frames[at])
        size = len(kept) - before if before is not None else 0
        if before is not None and 0 < size <= len(frames) - at and kept[before:] == frames[at : at + size]:
            at += size
            continue
        last[frames[at]] = len(kept)
        kept.append(frames[at])
        at += 1
    return kept
