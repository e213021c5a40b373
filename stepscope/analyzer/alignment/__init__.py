"""Which calls of different ranks belong together, on one clock, and who came last?"""
