"""The checks: what does each say of a GPU's, or the machine's, newest samples? Pure: a sample brings its time along."""
