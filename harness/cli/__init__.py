"""Ask for it: one command per file; its first statement turns options into one value."""
