"""One file for each group of commands; importing it adds them to the app."""
