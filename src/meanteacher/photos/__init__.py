"""A person's images before any network: found, decoded, kept, compared and checked."""
