"""Options that commands share, and their reading."""
