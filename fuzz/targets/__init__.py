"""The targets, by subject."""
