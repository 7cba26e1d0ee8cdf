"""Why memory ran out: torch's and its libraries' texts read, classified in a fixed order, and the next experiment."""
