"""Logs of any origin as lines: which rank said what, in which file and line, in bounded memory."""
