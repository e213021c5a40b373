"""Pure functions from columns to findings: no I/O, no clock, no plotting."""
