"""What commands print in a terminal: tables, lines and progress."""
