"""Pages of the web app, and what surrounds or replaces them."""
