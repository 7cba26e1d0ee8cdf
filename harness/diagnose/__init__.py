"""Why a job failed, and what to change."""
