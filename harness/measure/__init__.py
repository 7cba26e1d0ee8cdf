"""One run: request, launch, record, verdict."""
