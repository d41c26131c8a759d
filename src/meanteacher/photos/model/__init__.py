"""A trained model as files: saved, loaded, used, evaluated and exported."""
