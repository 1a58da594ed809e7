"""Where manifests come from: `models/` by name, a path, and the importers of released configurations.

load("llama-3.1-8b")        a catalogue name, its Hugging Face id, a manifest, a config.json, its folder, a MaxText .yml
load_case_file("case.toml") a model, the options of a case, and what is supplied or expected with it
from_huggingface(config)    a parsed config.json of a model type that is understood
read_maxtext("base.yml")    a MaxText file: the model and the step
"""

from __future__ import annotations

from jaxcost.catalog.casefile import CaseFile as CaseFile
from jaxcost.catalog.casefile import load_case_file as load_case_file
from jaxcost.catalog.huggingface import from_huggingface as from_huggingface
from jaxcost.catalog.manifest import Manifest as Manifest
from jaxcost.catalog.manifest import catalogue_names as catalogue_names
from jaxcost.catalog.manifest import load as load
from jaxcost.catalog.manifest import load_architecture as load_architecture
from jaxcost.catalog.manifest import read_maxtext as read_maxtext
from jaxcost.catalog.published import Published as Published
from jaxcost.catalog.toml_text import manifest_toml as manifest_toml
from jaxcost.catalog.toml_text import options_toml as options_toml
