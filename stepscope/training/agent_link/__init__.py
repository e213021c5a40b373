"""How does this process talk to the agent on its node?"""
