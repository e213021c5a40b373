"""How does the agent have training captured, whoever records it?"""
