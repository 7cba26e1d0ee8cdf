"""Why a job failed: its facts, the known symptoms, what was predicted of it, and what an experiment has shown."""
