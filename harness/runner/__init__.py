"""Do it: the only place where the stages meet."""
