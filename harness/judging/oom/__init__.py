"""Why a job ran out of memory, from its log and records."""
