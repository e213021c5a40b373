"""Root causes: whom each wait is attributed to, what each cause costs, and why."""
