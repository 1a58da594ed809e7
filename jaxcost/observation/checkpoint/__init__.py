"""What a checkpoint on the local disk says of itself, from its headers alone.

    seen = read_checkpoint("path/to/folder")      # Checkpoint: tensors with name, shape, dtype, bytes and file

Four formats: safetensors (one file, or shards with an index), Orbax (its metadata), Equinox leaves (`.npy` headers).
No tensor is read, nothing is downloaded, and no file outside the named folder is opened. A header that breaks its
format is refused, never mended.
"""

from __future__ import annotations

from jaxcost.observation.checkpoint.read import read_checkpoint as read_checkpoint
from jaxcost.observation.checkpoint.stored import Checkpoint as Checkpoint
from jaxcost.observation.checkpoint.stored import StoredFile as StoredFile
from jaxcost.observation.checkpoint.stored import StoredTensor as StoredTensor
