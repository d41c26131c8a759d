"""A person's own images with few labels: found, checked, decoded, learned from, and handed back as a classifier."""
