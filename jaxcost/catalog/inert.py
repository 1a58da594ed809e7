"""Keys of a config.json that change neither the graph nor a number, each with the reason: the only such list.

Where a key is inert only for some values, those are listed; with another value the importer rejects it by name. Where
it is inert only for some model types, those are listed; another type does not define it, and it is rejected there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Inert:
    """Why a key is without effect, for which values (None: for all), and in which model types (None: in all)."""

    reason: str
    values: tuple[object, ...] | None = None
    types: tuple[str, ...] | None = None


def is_inert(key: str, value: object) -> bool:
    """Return whether `key` with `value` changes nothing; types count, so that 0 is not false."""
    values = INERT[key].values
    return values is None or any(type(value) is type(item) and value == item for item in values)


def is_known(key: str, model_type: str) -> bool:
    """Return whether the list has `key` for this model type."""
    entry = INERT.get(key)
    return entry is not None and (entry.types is None or model_type in entry.types)


_INITIAL = Inert("initial values of the weights")
_TOKEN = Inert("the meaning of a token id")
_PROVENANCE = Inert("says where the file came from")
_STORAGE = Inert("the type of the released weights; a state policy decides the types of a case")
_GENERATION = Inert("how tokens are sampled")
_LABELS = Inert("names of labels, or a training loss for another head")
_RETURNS = Inert("what a call returns, not what it computes")
_SUMMARY = Inert("the sequence summary of GPT2DoubleHeadsModel; the model with a head on every token has none")
_SERVING = Inert("a setting of the MLC-LLM serving engine that the class does not read")
_KERNEL = Inert("which kernel computes the same thing; the workload's attention plan decides")
_RUNNER = Inert("how a serving engine runs the model; the class does not read it", types=("gpt_bigcode",))
_STARCODER = Inert(
    "a key of other code that the class does not read; softmax is inside fp32", types=("starcoder2", "bloom")
)
_MEGATRON = Inert("how Megatron trained the model; BloomForCausalLM does not read it", types=("bloom",))

INERT: dict[str, Inert] = {
    **dict.fromkeys(("initializer_range", "init_std", "init_config", "init_device", "initializer_factor"), _INITIAL),
    **dict.fromkeys(
        ("max_position_embeddings", "original_max_position_embeddings", "max_seq_len", "seq_length"),
        Inert("bounds the positions served; models without a learned position table keep nothing for it"),
    ),
    "n_ctx": Inert("an older name of n_positions that the class no longer reads"),
    "use_cache": Inert("whether generation keeps K/V; the workload's phase decides"),
    "cache_implementation": Inert("how generation keeps K/V; the workload's phase decides"),
    **dict.fromkeys(("_attn_implementation", "attn_implementation"), _KERNEL),
    **dict.fromkeys(
        (
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "sep_token_id",
            "unk_token_id",
            "decoder_start_token_id",
            "word_embed_token_id",
        ),
        _TOKEN,
    ),
    **dict.fromkeys(
        ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "tokenizer_class", "tokenizer_name",
         "prefix", "verbose", "inference", "license"),
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
    **dict.fromkeys(
        (
            "id2label",
            "_num_labels",
            "label2id",
            "num_labels",
            "finetuning_task",
            "problem_type",
            "loss_type",
            "classifier_dropout",
            "classifier_bias",
        ),
        _LABELS,
    ),
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
    **dict.fromkeys(("context_window_size", "prefill_chunk_size", "attention_sink_size"), _SERVING),
    **dict.fromkeys(
        ("masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add",
         "skip_bias_add_qkv", "offset_alibi"),
        _MEGATRON,
    ),
    "pretraining_tp": Inert("older classes multiplied in slices of the same weights, the present ones do not read it"),
    "n_special": Inert("a key of GPT-1 that the class does not read", (0,), ("gpt2",)),
    "predict_special_tokens": Inert("a key of GPT-1 that the class does not read", types=("gpt2",)),
    "gradient_checkpointing": Inert("what training recomputes; the execution's remat decides"),
    **dict.fromkeys(
        ("attention_probs_dropout_prob", "hidden_dropout_prob"),
        Inert("older names of the dropout rates, which the class does not read", (0, 0.0), ("gpt_neox",)),
    ),
    "is_llama_config": Inert("written by the training code; the class does not read it", types=("llama",)),
    "rope_interleaved": Inert("whether neighbouring coordinates turn together", (False,), ("llama",)),
    "attention_bias": Inert("the class gives q, k and v a bias and o none, whatever the key says", (True,), ("qwen2",)),
    **dict.fromkeys(("inference_runner", "runner_max_sequence_length", "validate_runner_input",
                     "pre_allocate_kv_cache"), _RUNNER),
    **dict.fromkeys(("activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon",
                     "scale_attention_softmax_in_fp32", "scale_attn_weights"), _STARCODER),
    "learned_pos_emb": Inert("without effect beside alibi: the model has no position table", types=("mpt",)),
    "apply_residual_connection_post_layernorm": Inert(
        "the class does not read it; true would start the residual from the norm's output", (False,), ("falcon",)
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
}  # fmt: skip
