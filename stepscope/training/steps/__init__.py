"""What is told of every step, and how is it read without making training wait?"""
