"""The pictures of a sweep."""
