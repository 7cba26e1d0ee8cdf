"""Values as text, tables, pages and JSON."""
