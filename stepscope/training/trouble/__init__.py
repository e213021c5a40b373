"""What is kept when a step gets stuck or the process is told to end?"""
