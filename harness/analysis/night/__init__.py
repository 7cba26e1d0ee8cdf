"""Judge of a night: cases, their noise, the rules of evidence."""
