"""Rules between the fields of a request: one row each, judged before anything starts."""
