"""Health checks: what each says of the newest samples of a GPU or the machine. Pure: a sample brings its time along."""
