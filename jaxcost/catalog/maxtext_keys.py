"""Keys of a MaxText file that change neither the graph nor a step, each with the reason, some by their beginning."""

from __future__ import annotations

_RUN = "names, logs and paths of a run"
_DATA = "where tokens come from"
_CHECKPOINT = "when and how checkpoints are written and read"
_PROFILE = "what is measured and traced"
_SCHEDULE = "how long and at which rate training runs; counts of one step do not depend on it"
_SERVING = "serving and evaluation, not the training step"
_PLACE = "where devices are and how they are reached"
_SHARDING = "names of axes that MaxText maps itself; the layout here is declared by mesh"

_PREFIXES: dict[str, str] = {
    "checkpoint_": _CHECKPOINT,
    "enable_checkpoint": _CHECKPOINT,
    "async_checkpoint": _CHECKPOINT,
    "save_checkpoint": _CHECKPOINT,
    "load_": _CHECKPOINT,
    "dataset_": _DATA,
    "tokenizer_": _DATA,
    "grain_": _DATA,
    "hf_": _DATA,
    "tfds_": _DATA,
    "eval_": _SERVING,
    "profiler": _PROFILE,
    "profile_": _PROFILE,
    "tensorboard": _PROFILE,
    "enable_tensorboard": _PROFILE,
    "enable_goodput": _PROFILE,
    "learning_rate": _SCHEDULE,
    "warmup_": _SCHEDULE,
    "cosine_": _SCHEDULE,
    "adam_": "constants of the optimizer; counts of one step do not depend on them",
    "prefill_": _SERVING,
    "decode_": _SERVING,
    "inference_": _SERVING,
    "sa_": "block sizes of the flash kernel",
    "compile_topology": _PLACE,
}
_KEYS: dict[str, str] = {
    **dict.fromkeys(("run_name", "base_output_directory", "metrics_file", "gcs_metrics", "log_period", "log_config",
                     "save_config_to_gcs", "base_config", "description"), _RUN),
    **dict.fromkeys(("per_device_batch_size_start", "steps", "init_weights_seed",
                     "data_shuffle_seed", "enable_data_shuffling", "add_bos", "add_eos", "packing"), _SCHEDULE),
    **dict.fromkeys(("max_prefill_predict_length", "autoregressive_decode_assert", "return_log_prob"), _SERVING),
    **dict.fromkeys(("hardware", "num_slices", "jax_cache_dir", "jax_distributed_initialization_timeout",
                     "skip_jax_distributed_system", "use_vertex_tensorboard", "xla_flags"), _PLACE),
    **dict.fromkeys(("mesh_axes", "logical_axis_rules", "data_sharding", "allow_split_physical_axes",
                     "sharding_tolerance"), _SHARDING),
    "reuse_example_batch": _DATA,
    "target_eval_loss": _SERVING,
    "cast_logits_to_fp32": "the state policy decides the type of the logits",
    "enable_dropout": "acts only with a dropout_rate, which must be 0 here",
    "param_scan_axis": "the place of the layer axis in a stacked array",
    "max_position_embeddings": "bounds the positions served; rotary positions keep no table",
    "original_max_position_embeddings": "read with yarn positions alone, which are refused",
    "skip_first_n_steps_for_profiler": _PROFILE,
    "dump_hlo": _PROFILE,
}  # fmt: skip


def inert_reason(key: str) -> str | None:
    """Return why a key is without effect, or None where it is not known to be."""
    if key in _KEYS:
        return _KEYS[key]
    return next((reason for prefix, reason in _PREFIXES.items() if key.startswith(prefix)), None)
