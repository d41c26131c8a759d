"""Fit a classifier to a user's own photos, of which a few are labelled."""
