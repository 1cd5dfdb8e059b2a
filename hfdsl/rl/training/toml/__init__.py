"""Configurations as TOML: text, places of keys and values, tables, and changes of them."""
