"""Words of other programs: their configurations, logs and golden files, read without importing them."""
