"""Keys of a config.json that change neither the graph nor a number, each with the reason.

Where a key is inert only for some values, those are listed; with another value the importer rejects it by name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Inert:
    """Why a key is without effect, and for which values (None: for all)."""

    reason: str
    values: tuple[object, ...] | None = None


def is_inert(key: str, value: object) -> bool:
    """Return whether `key` with `value` changes nothing; types count, so that 0 is not false."""
    values = INERT[key].values
    return values is None or any(type(value) is type(item) and value == item for item in values)


_INITIAL = Inert("initial values of the weights")
_TOKEN = Inert("the meaning of a token id")
_PROVENANCE = Inert("says where the file came from")
_STORAGE = Inert("the type of the released weights; a state policy decides the types of a case")
_GENERATION = Inert("how tokens are sampled")
_LABELS = Inert("names of labels, or a training loss for another head")
_RETURNS = Inert("what a call returns, not what it computes")
_SUMMARY = Inert("the sequence summary of GPT2DoubleHeadsModel; GPT2LMHeadModel has none")
_POSITIONS = Inert("bounds the positions served; rotary positions keep no learned table")

INERT: dict[str, Inert] = {
    "initializer_range": _INITIAL,
    "max_position_embeddings": _POSITIONS,
    "n_ctx": Inert("an older name of n_positions that the class no longer reads"),
    "use_cache": Inert("whether generation keeps K/V; the workload's phase decides"),
    "_attn_implementation": Inert("which attention kernel runs; the workload's attention plan decides"),
    "attn_implementation": Inert("which attention kernel runs; the workload's attention plan decides"),
    **dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"),
        _TOKEN,
    ),
    **dict.fromkeys(
        ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "tokenizer_class", "prefix"),
        _PROVENANCE,
    ),
    **dict.fromkeys(("torch_dtype", "dtype"), _STORAGE),
    **dict.fromkeys(
        (
            "task_specific_params",
            "do_sample",
            "early_stopping",
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
            "repetition_penalty",
            "length_penalty",
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
            "bad_words_ids",
            "num_return_sequences",
            "max_length",
            "min_length",
            "max_new_tokens",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "remove_invalid_values",
            "exponential_decay_length_penalty",
            "suppress_tokens",
            "begin_suppress_tokens",
            "generation_config",
        ),
        _GENERATION,
    ),
    **dict.fromkeys(("id2label", "label2id", "num_labels", "finetuning_task", "problem_type", "loss_type"), _LABELS),
    **dict.fromkeys(
        (
            "output_attentions",
            "output_hidden_states",
            "output_scores",
            "return_dict",
            "return_dict_in_generate",
            "use_return_dict",
            "torchscript",
            "tf_legacy_loss",
            "use_bfloat16",
        ),
        _RETURNS,
    ),
    **dict.fromkeys(
        ("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
        _SUMMARY,
    ),
    "pruned_heads": Inert("heads removed from layers", ({}, None)),
    "chunk_size_feed_forward": Inert("cuts the MLP into chunks", (0, None)),
    "is_encoder_decoder": Inert("an encoder beside the decoder", (False,)),
    "is_decoder": Inert("a decoder-only class is a decoder either way", (False, True)),
    "add_cross_attention": Inert("cross attention in every layer", (False,)),
    "cross_attention_hidden_size": Inert("the width of a cross attention", (None,)),
    "tie_encoder_decoder": Inert("ties an encoder to the decoder", (False,)),
    "quantization_config": Inert("stores weights in other types, with scales of their own", (None,)),
    "sliding_window": Inert("layers would see a window of the tokens", (None,)),
}
