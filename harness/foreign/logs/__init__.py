"""Reads logs of any origin as lines, with rank, file and line number, in bounded memory."""
