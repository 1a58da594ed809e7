"""Where manifests come from: `models/` by name, a path, and the importers of released configurations."""
