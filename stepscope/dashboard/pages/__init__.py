"""Pages of the web app: one module a page, and what surrounds or replaces it."""
