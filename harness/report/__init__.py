"""Show it: one file per format; bytes and seconds get their units only here."""
