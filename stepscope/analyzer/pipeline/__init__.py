"""How large is the pipeline's bubble, and which part of it is whose?"""
