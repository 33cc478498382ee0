"""How commands show what they found: text, tables, JSON, charts."""
