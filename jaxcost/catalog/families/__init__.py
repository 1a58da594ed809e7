"""One reader for each model type, kept by kinship: `llama`, `gemma`, `gpt`, `parallel`, `alibi`.

A reader takes the keys of a config and returns the data of an `Architecture`. Defaults and layer forms are those of
transformers 4.57.6, `models/<type>/configuration_<type>.py` and `modeling_<type>.py`, compared with 5.24; where the two
differ the reader says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxcost.catalog.families import alibi, gemma, gpt, llama, parallel
from jaxcost.catalog.keys import Keys
from jaxcost.catalog.parts import Data


@dataclass(frozen=True)
class Family:
    """How configs of one model type are read.

    `classes` are the classes whose parameters the reader describes; another one (a classifier, say) has another head.
    `remote` marks types that were released as code on the Hub first: their `auto_map` names that older code.
    """

    read: Callable[[Keys], Data]
    classes: tuple[str, ...]
    remote: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family(llama.llama, ("LlamaForCausalLM",)),
    "mistral": Family(llama.mistral, ("MistralForCausalLM",)),
    "qwen2": Family(llama.qwen2, ("Qwen2ForCausalLM",)),
    "qwen3": Family(llama.qwen3, ("Qwen3ForCausalLM",)),
    "phi3": Family(llama.phi3, ("Phi3ForCausalLM",), remote=True),
    "olmo": Family(llama.olmo, ("OlmoForCausalLM",)),
    "olmo2": Family(llama.olmo2, ("Olmo2ForCausalLM",)),
    "olmo3": Family(llama.olmo3, ("Olmo3ForCausalLM",)),
    "smollm3": Family(llama.smollm3, ("SmolLM3ForCausalLM",)),
    "seed_oss": Family(llama.seed_oss, ("SeedOssForCausalLM",)),
    "gemma": Family(gemma.gemma, ("GemmaForCausalLM",)),
    "gemma2": Family(gemma.gemma2, ("Gemma2ForCausalLM",)),
    "gpt2": Family(gpt.gpt2, ("GPT2LMHeadModel",)),
    "gpt_bigcode": Family(gpt.gpt_bigcode, ("GPTBigCodeForCausalLM",)),
    "opt": Family(gpt.opt, ("OPTForCausalLM",)),
    "starcoder2": Family(gpt.starcoder2, ("Starcoder2ForCausalLM",)),
    "gpt_neox": Family(parallel.gpt_neox, ("GPTNeoXForCausalLM",)),
    "falcon": Family(parallel.falcon, ("FalconForCausalLM",), remote=True),
    "stablelm": Family(parallel.stablelm, ("StableLmForCausalLM",), remote=True),
    "bloom": Family(alibi.bloom, ("BloomForCausalLM",)),
    "mpt": Family(alibi.mpt, ("MptForCausalLM", "MPTForCausalLM"), remote=True),
}
