"""The commands over files of rows, and over the journals of their runs."""
