"""Tables of rows: read from files and programs, filled into prompts, and written beside their answers."""
