"""How commands show results: text, tables, JSON, charts."""
