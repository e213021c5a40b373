"""Communication of all ranks: process groups, collectives matched and on one clock, who arrived last, their cost."""
