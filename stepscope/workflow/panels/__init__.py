"""An analysis drawn as panels of HTML, and the report that holds them all in one file."""
